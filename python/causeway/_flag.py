"""Flags that callers give."""

from causeway._kind import kind_of


def flag(argument, value):
    """True or False, of a value that means one of them: 0, 1, None and the bools of libraries do. A tensor in its place was meant for
    another argument. Callers that have a bool need not ask."""
    if value is None or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    axes = getattr(value, "ndim", None)
    if axes == 0 and str(value.dtype) in ("bool", "torch.bool"):
        return bool(value)
    found = f"{kind_of(value)} of shape {tuple(value.shape)}" if axes else repr(value)
    raise TypeError(f"{argument} is {found}: expected True or False")
