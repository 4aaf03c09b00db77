"""The modules of `causeway.nn` as operations of random calls. Their results have the bits of the functions that they are made of."""

import functools

import torch
import torch.nn.functional as F

import causeway
from random_operations import DTYPES, QKV, Function, Packed, Spec, Update


class _Module:
    """A module whose parameters are tensors of the call."""

    is_module = True

    def module(self, t, c):
        """The module, its parameters those of the call."""
        module = self.make(c, "meta")
        for name in [name for name in t if self.is_parameter(name)]:
            owner, _, last = name.rpartition(".")
            setattr(module.get_submodule(owner), last, t[name])
        return module

    def is_parameter(self, name):
        return name.split(".")[-1] in ("weight", "bias")

    def bind(self, given, c):
        module = self.module(given, c)
        others = {name: tensor for name, tensor in given.items() if not self.is_parameter(name)}
        return Bound(self, module, c), others

    @functools.lru_cache(4)
    def _kept(self, items):
        return self.make(dict(items), "meta")

    def prepare(self, c):
        """The module without values, made before there is a transform that would see how."""
        return self._kept(tuple(c.items()))

    def call(self, t, c):
        module = self.prepare(c)
        parameters = {name: tensor for name, tensor in t.items() if self.is_parameter(name)}
        given, named = self.arguments(t, c)
        if self.is_step:
            module = Stepping(module)
            parameters = {f"module.{name}": tensor for name, tensor in parameters.items()}
        return self.flat(torch.func.functional_call(module, parameters, given, named))

    def arguments(self, t, c):
        """Of the module's forward pass or step."""
        if self.is_step:
            return (t["x"], t["state"]), {name: t.get(name) for name in ("cache_seqlens", "conv_state_indices")}
        named = {name: t.get(name) for name in ("seq_idx", "cu_seqlens")}
        if self.kind == "CausalConv1d":
            named["residual"] = t.get("residual")
        return (t["x"], t.get("state")), {**named, "return_state": c["final"] == "returned"}

    def flat(self, found):
        """All results in one tuple."""
        if isinstance(found, torch.Tensor):
            return (found,)
        first, *others = found
        return (*(first if isinstance(first, tuple) else (first,)), *others)

    def make(self, c, device="cpu"):
        """A module as the choices have it."""
        options = {"bias": c["bias"], "activation": c["activation"], "dtype": DTYPES[c["weight_dtype"]], "device": device}
        if self.kind == "CausalConv1d":
            return causeway.nn.CausalConv1d(c["dim"], c["width"], **options)
        if self.kind == "GatedShortConv":
            options |= {"order": c["order"], "round_products": c["round_products"]}
            return causeway.nn.GatedShortConv(c["dim"], c["width"], **options)
        named = QKV(False).options(c)
        return causeway.nn.QKVShortConv(named.pop("sizes"), named.pop("head_dim"), c["width"], **named | options)

    def of_module(self, specs, c):
        """A function's tensors as the module has them."""
        specs = dict(specs)
        prefix = "" if self.kind == "CausalConv1d" else "conv."
        weight, bias = specs.pop("weight"), specs.pop("bias", None)
        specs[f"{prefix}weight"] = Spec((weight.shape[0], 1, weight.shape[1]), weight.dtype)
        if bias is not None:
            specs[f"{prefix}bias"] = bias
        for old in ("initial_states", "conv_state"):
            if old in specs:
                specs["state"] = specs.pop(old)
        if self.kind == "GatedShortConv":
            # B and C come out of the first projection.
            x = specs.pop("packed", specs.get("x"))
            for gate in "BC":
                specs.pop(gate, None)
            batch, _, *seqlen = x.shape
            specs["x"] = x._replace(shape=(batch, *seqlen, c["dim"]))
            for name, rows in (("in_proj", 3 * c["dim"]), ("out_proj", c["dim"])):
                specs[f"{name}.weight"] = Spec((rows, c["dim"]), weight.dtype)
                if c["bias"]:
                    specs[f"{name}.bias"] = Spec((rows,), weight.dtype)
        elif self.kind == "QKVShortConv":
            batch, channels, *seqlen = specs["x"].shape
            specs["x"] = specs["x"]._replace(shape=(batch, *seqlen, channels))
        return specs

    def composed(self, t, c):
        """What the module is made of."""
        prefix = "" if self.kind == "CausalConv1d" else "conv."
        given = dict(t, weight=t[f"{prefix}weight"].squeeze(1), bias=t.get(f"{prefix}bias"))
        given["conv_state" if self.is_step else "initial_states"] = t.get("state")
        turned = lambda y: y.transpose(1, 2) if y.ndim == 3 else y  # noqa: E731
        if self.kind == "QKVShortConv":
            given["x"] = turned(t["x"])
        if self.kind == "GatedShortConv":
            packed = turned(F.linear(t["x"], t["in_proj.weight"], t.get("in_proj.bias")))
            if self.is_step:
                given |= dict(zip(c["order"], packed.split(c["dim"], 1)))
            else:
                given["packed"] = packed
        found = self.function.call(given, c)
        if self.kind == "GatedShortConv":
            y, *others = found
            y = F.linear(turned(y), t["out_proj.weight"], t.get("out_proj.bias"))
            found = (y.detach() if self.is_step else y, *others)
        return found


class Stepping(torch.nn.Module):
    """A module that is called for its step."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *arguments, **named):
        return self.module.step(*arguments, **named)


class Bound(torch.nn.Module):
    """A module as a function of tensors by their names."""

    def __init__(self, operation, module, c):
        super().__init__()
        self.operation, self.module, self.c = operation, module, c

    def forward(self, tensors):
        given, named = self.operation.arguments(tensors, self.c)
        return self.operation.flat((self.module.step if self.operation.is_step else self.module)(*given, **named))


def _drawn(kind, choices, draw):
    """What a module has, of what its function has."""
    choices = dict(choices)
    if "final" in choices:
        choices["final"] = "returned" if choices["final"] in ("returned", "both") else None
    if kind != "QKVShortConv":
        choices["dim"] = max(1, choices["dim"])
    else:
        choices["heads_q"] = max(1, choices["heads_q"])
    if kind == "GatedShortConv":
        # One dtype from the first projection to the last.
        choices |= {"weight_dtype": choices["dtype"], "order": draw.choice(("BCx", "xCB", "CBx")), "B": True, "C": True}
    return choices


class Module(_Module, Function):
    """A forward pass."""

    is_step = False

    def __init__(self, kind):
        self.kind, self.name = kind, kind
        self.function = {"CausalConv1d": Function(), "GatedShortConv": Packed(), "QKVShortConv": QKV(False)}[kind]
        self.results = self.function.results
        self.same_bits_mapped = kind != "GatedShortConv"

    def draw(self, draw):
        return _drawn(self.kind, self.function.draw(draw), draw)

    def specs(self, c):
        return self.of_module(self.function.specs(c), c)


class Step(_Module, Update):
    """A step."""

    is_step = True

    def __init__(self, kind):
        function = Update({"CausalConv1d": "", "GatedShortConv": "gated", "QKVShortConv": "qkv"}[kind])
        self.kind, self.name, self.function, self.results = kind, f"{kind}.step", function, function.results

    def draw(self, draw):
        return _drawn(self.kind, self.function.draw(draw), draw)

    def specs(self, c):
        return self.of_module(self.function.specs(c), c)
