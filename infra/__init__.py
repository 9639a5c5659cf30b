if __name__ != "atelier.infra":  # one module, one name
    raise ImportError(f"{__name__} is part of atelier: import atelier.infra")
