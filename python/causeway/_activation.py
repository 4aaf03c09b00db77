"""Names of activations."""


def is_silu(activation):
    """True for SiLU, False for none."""
    if activation is None:
        return False
    if activation in ("silu", "swish"):
        return True
    raise NotImplementedError(f'activation is {activation!r}: expected None, "silu" or "swish"')
