"""Refuses to build where the real causal-conv1d is installed: pip would remove it to make place for this one."""

import importlib.metadata
import sysconfig

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RefuseToReplace(BuildHookInterface):
    """Looks at the environment that pip installs into, which an isolated build runs on the interpreter of."""

    def initialize(self, version, build_data):
        """Ends the build if another causal-conv1d is there."""
        paths = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
        for found in importlib.metadata.distributions(name="causal-conv1d", path=paths):
            if not found.version.endswith("+causeway"):
                raise SystemExit(
                    f"causal-conv1d {found.version} is installed in {paths[0]}: this package has its import name "
                    "and would replace it. To use Causeway instead, run `pip uninstall causal-conv1d` first; to keep both, "
                    "call causeway.install_causal_conv1d(), which needs no package."
                )
