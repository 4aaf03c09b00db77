"""The original's extension module; see `causeway.drop_in.extension`."""

from causeway.drop_in.extension import causal_conv1d_bwd, causal_conv1d_fwd, causal_conv1d_update

__all__ = ["causal_conv1d_bwd", "causal_conv1d_fwd", "causal_conv1d_update"]
