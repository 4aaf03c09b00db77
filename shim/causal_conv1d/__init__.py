"""Causeway under the name of causal_conv1d."""

import importlib.metadata
import warnings

from causeway.drop_in import VERSION as __version__

from causal_conv1d.causal_conv1d_interface import causal_conv1d_fn, causal_conv1d_update
from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states

__all__ = ["__version__", "causal_conv1d_fn", "causal_conv1d_update", "causal_conv1d_varlen_states"]


def _warn_of_the_original():
    """An installer removes another causal-conv1d only from the folder that it installs into."""
    for found in importlib.metadata.distributions(name="causal-conv1d"):
        if not found.version.endswith("+causeway"):
            warnings.warn(
                f"causal-conv1d {found.version} is installed too, in {found.locate_file('')}, and Causeway's package of "
                "that name hides it: uninstall one of the two, or keep the original alone and call "
                "causeway.install_causal_conv1d() where Causeway is to take its place",
                stacklevel=3,
            )


_warn_of_the_original()
