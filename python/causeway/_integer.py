"""Integers that callers give."""

import operator


def integer(argument, value, lowest, highest=None):
    """An int within bounds."""
    expected = f"expected an int, {lowest} or more" if highest is None else f"expected an int, {lowest} to {highest}"
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{argument} is {value!r}: {expected}") from None
    if number < lowest or (highest is not None and number > highest):
        raise ValueError(f"{argument} is {number}: {expected}")
    return number
