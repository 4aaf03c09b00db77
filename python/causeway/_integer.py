"""Integers that callers give."""

import math
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


def state_length(state_len, *sizes):
    """The state_len of states whose other sizes, that of an element among them, are these: their bytes are a number of 63 bits."""
    return integer("state_len", integer("state_len", state_len, 0), 0, (2**63 - 1) // math.prod(max(size, 1) for size in sizes))
