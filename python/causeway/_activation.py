"""Names of activations, and options of the convolution."""


def is_silu(activation):
    """True for SiLU, False for none."""
    if activation is None:
        return False
    if activation in ("silu", "swish"):
        return True
    raise NotImplementedError(f'activation is {activation!r}: expected None, "silu" or "swish"')


def kernel_option(option):
    """An activation, or a pair of it and whether products with gates are rounded, as kernels take it."""
    return (is_silu(option[0]), bool(option[1])) if type(option) is tuple else is_silu(option)
