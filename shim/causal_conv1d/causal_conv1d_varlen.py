"""States of packed sequences; see `causeway.drop_in.varlen`."""

from causeway.drop_in.varlen import causal_conv1d_varlen_states, causal_conv1d_varlen_states_ref

__all__ = ["causal_conv1d_varlen_states", "causal_conv1d_varlen_states_ref"]
