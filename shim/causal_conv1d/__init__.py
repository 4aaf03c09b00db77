"""Causeway under the name of causal_conv1d."""

from importlib.metadata import PackageNotFoundError, version

from causal_conv1d.causal_conv1d_interface import causal_conv1d_fn, causal_conv1d_update
from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states

try:
    __version__ = version("causal-conv1d")
except PackageNotFoundError:
    # Used from its source directory, without having been installed.
    __version__ = "1.7.0+causeway"

__all__ = ["causal_conv1d_fn", "causal_conv1d_update", "causal_conv1d_varlen_states"]
