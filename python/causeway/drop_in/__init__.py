"""The modules of causal_conv1d, computed by Causeway's kernels.

The distribution in `shim/` gives them their import names; `causeway.install_causal_conv1d` does so for one process, with
no distribution at all.
"""

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["VERSION", "Installed", "install"]

# Of the original whose modules these are; +causeway tells the two apart.
VERSION = "1.7.0+causeway"

# The original's names, each with the module here that has what it has; the package itself first.
MODULES = {
    "causal_conv1d": "causeway.drop_in.package",
    "causal_conv1d.causal_conv1d_interface": "causeway.drop_in.interface",
    "causal_conv1d.causal_conv1d_varlen": "causeway.drop_in.varlen",
    "causal_conv1d.cpp_functions": "causeway.drop_in.cpp_functions",
    "causal_conv1d_cuda": "causeway.drop_in.extension",
}


def _alias(name):
    """A module of the original's name with what ours of it has."""
    source = importlib.import_module(MODULES[name])
    module = ModuleType(name, source.__doc__)
    is_package = name == "causal_conv1d"
    # find_spec asks for one, which is how other libraries look whether this one is there.
    module.__spec__ = ModuleSpec(name, None, origin=source.__file__, is_package=is_package)
    module.__file__ = source.__file__
    module.__package__ = name if is_package else name.rpartition(".")[0]
    if is_package:
        module.__path__ = []
    for key, value in vars(source).items():
        if key in ("__version__", "__all__") or not key.startswith("__"):
            setattr(module, key, value)
    return module


class Removable:
    """The end of a ``with`` block calls its `remove`."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()


# What has not been removed yet, in the order in which it came.
_installed = []


class Installed(Removable):
    """What `install` has done. `remove` undoes it, and so does the end of a ``with`` block."""

    def __init__(self, modules):
        self._modules = modules
        self._before = {name: sys.modules.get(name) for name in modules}
        sys.modules.update(modules)
        _installed.append(self)

    def remove(self):
        """Puts back what was there, for whoever imports causal_conv1d from now on. A second time does nothing."""
        if self not in _installed:
            return
        _installed.remove(self)
        for name, module in self._modules.items():
            before = self._before[name]
            # One that came later must not put this module back.
            for other in _installed:
                if other._before[name] is module:
                    other._before[name] = before
            if sys.modules.get(name) is not module:
                # Somebody has put another one there since, which is theirs to remove.
                continue
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before


def install():
    """See `causeway.install_causal_conv1d`."""
    modules = {name: _alias(name) for name in MODULES}
    for name, module in modules.items():
        parent, _, attribute = name.rpartition(".")
        if parent:
            setattr(modules[parent], attribute, module)
    return Installed(modules)
