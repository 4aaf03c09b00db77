"""Modules of models of `transformers` that are given a forward pass of Causeway's; see `causeway.patch_transformers`."""

import inspect
import sys
import types
import weakref

from torch.nn import Module

from causeway._kind import kind_of
from causeway.drop_in import Removable, delta_net, short_conv

# What knows a module, has its forward pass, and names the child whose parameters that reads by itself.
_KINDS = short_conv, delta_net

# Modules whose forward pass is one of these now.
_patched = weakref.WeakSet()


class Patched(Removable):
    """What `patch_transformers` has done to a model. `remove` undoes it, and so does the end of a ``with`` block."""

    def __init__(self, modules):
        self._before = []
        for module, kind in modules:
            # Where accelerate moves a module's parameters, it has put a forward pass of its own around this one.
            name = "_old_forward" if hasattr(module, "_hf_hook") else "forward"
            self._before.append((module, name, vars(module).get(name)))
            # It brings parts of a model that is offloaded to their device before the convolution's parameters are read.
            hooks = getattr(sys.modules[type(module).__module__], "force_accelerate_hooks", None)
            forward = kind.forward if hooks is None else hooks(kind.CHILD)(kind.forward)
            setattr(module, name, types.MethodType(forward, module))
            _patched.add(module)

    @property
    def count(self):
        """How many modules were given another forward pass."""
        return len(self._before)

    def remove(self):
        """Gives the modules their own forward passes back. A second time does nothing."""
        for module, name, before in self._before:
            if before is None:
                vars(module).pop(name, None)
            else:
                setattr(module, name, before)
            _patched.discard(module)
        self._before = []


def patch(model):
    """See `causeway.patch_transformers`."""
    if not isinstance(model, Module):
        raise TypeError(f"model is {kind_of(model)}: expected a torch.nn.Module; for a pipeline, pass its model")
    modules = [(module, kind) for module in model.modules() for kind in _KINDS if kind.knows(module)]
    if not modules:
        raise ValueError(
            f"model is {kind_of(model)} without a gated short convolution, or a gated delta net with SiLU: expected a model of "
            "LFM2, LFM2-MoE, LFM3, Qwen3-Next, Qwen3.5 or Qwen3.5-MoE from transformers 5.23 or later; for the plain convolution of "
            "others, see causeway.install_causal_conv1d"
        )
    if not hasattr(sys.modules["transformers.cache_utils"].Cache, "is_recording_past"):
        version = sys.modules["transformers"].__version__
        raise RuntimeError(f"transformers is {version}, whose caches are others: expected 5.23 or later")
    for module, kind in modules:
        _expect_parameters(module, kind)
    if any(module in _patched for module, _ in modules):
        raise RuntimeError("model is patched already: call remove() of what causeway.patch_transformers gave then")
    return Patched(modules)


def _expect_parameters(module, kind):
    """Ours would not notice a parameter that it does not know."""
    unknown = inspect.signature(type(module).forward).parameters.keys() - inspect.signature(kind.forward).parameters.keys()
    if unknown:
        version, name = sys.modules["transformers"].__version__, type(module).__name__
        raise RuntimeError(
            f"transformers is {version}, where forward of {name} has the parameter {min(unknown)}, which Causeway does not know: "
            "expected 5.23 or 5.24; update Causeway"
        )
