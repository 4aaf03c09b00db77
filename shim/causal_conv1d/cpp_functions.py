"""The kernels as functions without autograd, and as operators; see `causeway.drop_in.cpp_functions`."""

from causeway.drop_in.cpp_functions import (
    LIBRARY_NAME,
    _causal_conv1d_bwd_cpp,
    _causal_conv1d_fwd_cpp,
    _causal_conv1d_update_cpp,
    causal_conv1d_bwd_function,
    causal_conv1d_fwd_function,
    causal_conv1d_update_function,
)

__all__ = [
    "LIBRARY_NAME",
    "_causal_conv1d_bwd_cpp",
    "_causal_conv1d_fwd_cpp",
    "_causal_conv1d_update_cpp",
    "causal_conv1d_bwd_function",
    "causal_conv1d_fwd_function",
    "causal_conv1d_update_function",
]
