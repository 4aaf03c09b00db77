"""Names of activations, and options of the convolution."""

from causeway._flag import flag

# What an option is where it is not given: activation, round_products, and head_dim, eps and scale of a norm. No heads are no norm.
DEFAULTS = None, False, 0, 1e-6, 1.0


def is_silu(activation):
    """True for SiLU, False for none."""
    if activation is None:
        return False
    # Arrays compare to strings in ways of their own.
    if isinstance(activation, str) and activation in ("silu", "swish"):
        return True
    raise NotImplementedError(f'activation is {activation!r}: expected None, "silu" or "swish"')


def with_rounding(activation, round_products):
    """The option of a call: its activation, or a pair of it and True where products with gates are rounded."""
    if round_products is False:
        return activation
    return (activation, True) if round_products is True or flag("round_products", round_products) else activation


def with_norm(activation, round_products, head_dim, eps, scale):
    """As `with_rounding`, of a call that may divide by the norm of heads: then it is a tuple of all options."""
    if head_dim == 0:
        return with_rounding(activation, round_products)
    return activation, bool(round_products), head_dim, eps, scale


def kernel_option(option):
    """As `with_norm` gives it, but with a bool for the activation, as kernels take it."""
    return (is_silu(option[0]), bool(option[1]), *option[2:]) if type(option) is tuple else is_silu(option)
