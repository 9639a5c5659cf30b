if __name__ != "atelier.engine":  # one module, one name
    raise ImportError(f"{__name__} is part of atelier: import atelier.engine")
