"""Flags that callers give."""


def flag(argument, value):
    """A bool. A tensor in its place was meant for another argument."""
    if getattr(value, "ndim", 0):
        found, shape = type(value).__name__, tuple(value.shape)
        raise TypeError(f"{argument} is a {found} of shape {shape}: expected True or False")
    return bool(value)
