"""The differentiable functions, and their references; see `causeway.drop_in.interface`."""

from causeway.drop_in.interface import (
    CausalConv1dFn,
    causal_conv1d_bwd_function,
    causal_conv1d_fn,
    causal_conv1d_fwd_function,
    causal_conv1d_ref,
    causal_conv1d_update,
    causal_conv1d_update_function,
    causal_conv1d_update_ref,
)

__all__ = [
    "CausalConv1dFn",
    "causal_conv1d_bwd_function",
    "causal_conv1d_fn",
    "causal_conv1d_fwd_function",
    "causal_conv1d_ref",
    "causal_conv1d_update",
    "causal_conv1d_update_function",
    "causal_conv1d_update_ref",
]
