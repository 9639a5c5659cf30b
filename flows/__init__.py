if __name__ != "atelier.flows":  # one module, one name
    raise ImportError(f"{__name__} is part of atelier: import atelier.flows")
