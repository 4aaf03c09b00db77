"""`causal_conv1d`: Causeway under this name."""

from causeway.drop_in import VERSION as __version__
from causeway.drop_in.interface import causal_conv1d_fn, causal_conv1d_update
from causeway.drop_in.varlen import causal_conv1d_varlen_states

__all__ = ["__version__", "causal_conv1d_fn", "causal_conv1d_update", "causal_conv1d_varlen_states"]
