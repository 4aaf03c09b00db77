"""What errors call the class of a value."""


def kind_of(value):
    """The name of its class with an article: a list, an int, an ndarray."""
    name = type(value).__name__
    article = "an" if name == "ndarray" or name.lower().startswith(("a", "e", "i", "o")) else "a"
    return f"{article} {name}"
