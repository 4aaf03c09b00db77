"""Names of activations, and options of the convolution."""


def is_silu(activation):
    """True for SiLU, False for none."""
    if activation is None:
        return False
    if activation in ("silu", "swish"):
        return True
    raise NotImplementedError(f'activation is {activation!r}: expected None, "silu" or "swish"')


def with_rounding(activation, round_products):
    """The option of a call: its activation, or a pair of it and True where products with gates are rounded."""
    return (activation, True) if round_products else activation


def kernel_option(option):
    """As `with_rounding` gives it, but with a bool for the activation, as kernels take it."""
    return (is_silu(option[0]), bool(option[1])) if type(option) is tuple else is_silu(option)
