if __name__ != "atelier.tasks":  # one module, one name
    raise ImportError(f"{__name__} is part of atelier: import atelier.tasks")
