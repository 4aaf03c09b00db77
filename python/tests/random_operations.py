"""The operations that random calls have: what is drawn for each, its tensors, the call, and what plain PyTorch gives for it.

What is drawn is a flat dict of numbers, flags and names, the choices: tensors are made from it alone, and a failing call is made simpler
by changing one of them at a time.
"""

import random
import zlib
from typing import Any, NamedTuple

import numpy
import torch

import causeway
import random_reference as reference

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
LAYOUTS = "contiguous", "contiguous", "transposed", "turned", "sliced", "narrow", "expanded 0", "expanded 1", "expanded 2"


class Spec(NamedTuple):
    """A tensor of a call."""

    shape: tuple
    dtype: Any
    # "input", one that is written ("out"), or the name of a kind of integers.
    kind: str = "input"
    # Whether autocast casts it.
    follows_x: bool = False


def laid_out(values, layout):
    """The same values in another memory order. An expanded axis has the first of its values in all places."""
    kind, _, axis = layout.partition(" ")
    if kind == "transposed" and values.ndim > 1:
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if kind == "turned":
        axes = tuple(reversed(range(values.ndim)))
        return values.permute(axes).contiguous().permute(axes)
    if kind == "sliced" and values.ndim:
        larger = values.new_full((*values.shape[:-1], 2 * values.shape[-1] + 1), 7)
        larger[..., 1::2] = values
        return larger[..., 1::2]
    if kind == "narrow" and values.ndim:
        larger = values.new_full((values.shape[0] + 2, *values.shape[1:]), 7)
        larger[1:-1] = values
        return larger[1:-1]
    if kind == "expanded" and values.ndim > int(axis) and values.shape[int(axis)]:
        return values.narrow(int(axis), 0, 1).clone().expand(values.shape)
    return values.contiguous()


def drawn(seed, name, spec, choices):
    """Values of a tensor, which do not depend on the other tensors."""
    key = zlib.crc32(f"{seed}:{name}".encode())
    draw = random.Random(key)
    if spec.kind in ("input", "out"):
        # Not from PyTorch, which draws nothing inside of vmap.
        return torch.from_numpy(numpy.asarray(numpy.random.RandomState(key).uniform(-1, 1, spec.shape))).to(spec.dtype)
    if spec.kind == "seq_idx":
        rows = []
        for _ in range(spec.shape[0]):
            row = []
            while len(row) < spec.shape[1]:
                row += [draw.choice((-2, -1, 0, 1, 1, 2, 7))] * draw.randint(1, 5)
            rows.append(row[: spec.shape[1]])
        return torch.tensor(rows, dtype=spec.dtype).reshape(spec.shape)
    if spec.kind == "cu_seqlens":
        cuts = sorted(draw.randint(0, choices["seqlen"]) for _ in range(spec.shape[0] - 2))
        return torch.tensor([0, *cuts, choices["seqlen"]], dtype=spec.dtype)
    if spec.kind == "rows":
        rows = draw.sample(range(choices["batch"] + 2), choices["batch"])
        return torch.tensor([row if draw.random() < 0.8 else -1 for row in rows], dtype=spec.dtype).reshape(spec.shape)
    # Positions seen so far.
    return torch.tensor([draw.choice((0, 1, 2, 5, 100)) for _ in range(spec.shape[0])], dtype=spec.dtype).reshape(spec.shape)


def sizes(draw):
    """What every convolution has."""
    dtype = draw.choice(("f32", "f32", "f16", "bf16", "bf16", "f64"))
    others = ("f64",) if dtype == "f64" else (dtype, dtype, "f32", "f16", "bf16")
    return {
        "batch": draw.choice((0, 1, 1, 2, 2, 3)),
        "dim": draw.choice((0, 1, 2, 3, 5, 8)),
        "seqlen": draw.choice((0, 1, 2, 3, 5, 9, 17, 33)),
        "width": draw.randint(1, 9),
        "dtype": dtype,
        "weight_dtype": draw.choice(others),
        "bias": draw.random() < 0.5,
        "activation": draw.choice((None, "silu", "swish")),
    }


class Operation:
    """An operation with what is common to all."""

    # The parts of the functions' names that errors of second derivatives may have.
    twice = "causal_conv1d"
    has_gradients, is_module, is_product = True, False, False
    # Whether an added batch of vmap has the bits of its entries.
    same_bits_mapped = True
    # How many of the results come before the states.
    outputs = 1

    def bind(self, given, choices):
        """A function of tensors by their names, and these; a module's parameters are not among them."""
        return (lambda tensors: self.call(tensors, choices)), given

    def parts(self, tensors, choices):
        """Of a convolution, what its results are made of; see `random_reference`."""
        raise NotImplementedError

    def truth(self, tensors, choices):
        """What plain PyTorch gives."""
        found = [reference.result(part) for part in self.parts(tensors, choices)]
        return [y for y, _ in found] + self.finals([final for _, final in found], choices)

    def finals(self, finals, choices):
        """The states among the results, of those of the parts."""
        return finals if choices["final"] in ("returned", "both") else []

    def copies(self, choices):
        """Whether states are copies of inputs, and no products."""
        return not choices.get("B")

    def prepare(self, choices):
        """Makes what a call needs besides tensors."""

    def outs(self, tensors, choices):
        """What stands in written tensors afterwards, by their names."""
        if "final_states_out" not in tensors:
            return {}
        return {"final_states_out": reference.result(self.parts(tensors, choices)[0])[1]}

    def terms(self, name, choices):
        """How many roundings add up in a result, or in the gradient of an input."""
        common = 3 * choices["width"] + 16 + max(choices.get(f"head_dim_{part}", 0) for part in "qkv")
        return common + choices["batch"] * choices["seqlen"] if reference.is_sum(name) else common

    def extra(self, name, choices, dtype):
        """Of the bound, what does not come from sums. Terms of a float32 dweight have no cheaper SiLU, but may be rounded."""
        if choices["dtype"] in ("f32", "f64"):
            return 0.0
        unit = reference.UNIT[DTYPES[choices["dtype"]]]
        silu = unit / 8 if choices["activation"] and dtype is not torch.float32 else 0.0
        return silu + (4 * unit if choices.get("round_products") else 0.0)


class Function(Operation):
    """causal_conv1d_fn, and with gates causal_conv1d_gated."""

    def __init__(self, gates=""):
        self.name, self.gates = "gated" if gates else "fn", gates
        self.results = 2

    def draw(self, draw):
        choices = sizes(draw) | {
            "index": draw.choice((None, None, "seq_idx", "cu_seqlens")),
            "sequences": draw.randint(1, 4),
            "long": draw.random() < 0.5,
            "states": draw.random() < 0.5,
            "final": draw.choice((None, None, "returned", "out", "both")),
            "residual": draw.random() < 0.4,
        }
        if self.gates:
            choices |= {"B": draw.random() < 0.8, "C": draw.random() < 0.8, "round_products": draw.random() < 0.3}
        return choices

    def indices(self, c):
        """The batch, the number of sequences, and the tensor of indices if there is one."""
        if c["index"] == "cu_seqlens":
            kind = torch.int64 if c["long"] else torch.int32
            return 1, c["sequences"], {"cu_seqlens": Spec((c["sequences"] + 1,), kind, "cu_seqlens")}
        if c["index"] == "seq_idx":
            return c["batch"], c["batch"], {"seq_idx": Spec((c["batch"], c["seqlen"]), torch.int32, "seq_idx")}
        return c["batch"], c["batch"], {}

    def specs(self, c):
        of, of_weight = DTYPES[c["dtype"]], DTYPES[c["weight_dtype"]]
        batch, count, indices = self.indices(c)
        x, states = Spec((batch, c["dim"], c["seqlen"]), of, "input", True), (count, c["dim"], c["width"] - 1)
        specs = {"x": x, "weight": Spec((c["dim"], c["width"]), of_weight)}
        if c["bias"]:
            specs["bias"] = Spec((c["dim"],), of_weight)
        if c["states"]:
            specs["initial_states"] = Spec(states, of, "input", True)
        if c["residual"]:
            specs["residual"] = x
        specs |= {gate: x for gate in self.gates if c[gate]} | indices
        if c["final"] in ("out", "both"):
            specs["final_states_out"] = Spec(states, of, "out")
        return specs

    def call(self, t, c):
        options = {name: t.get(name) for name in ("bias", "seq_idx", "initial_states", "final_states_out", "cu_seqlens", "residual")}
        options |= {"activation": c["activation"], "return_final_states": c["final"] in ("returned", "both")}
        if self.gates:
            options["round_products"] = c["round_products"]
            found = causeway.causal_conv1d_gated(t.get("B"), t["x"], t.get("C"), t["weight"], **options)
        else:
            found = causeway.causal_conv1d_fn(t["x"], t["weight"], **options)
        return found if isinstance(found, tuple) else (found,)

    def parts(self, t, c):
        return [dict(t, silu=c["activation"] is not None)]


class Packed(Function):
    """causal_conv1d_gated_packed."""

    same_bits_mapped = False

    def __init__(self):
        super().__init__("BC")
        self.name = "packed"

    def draw(self, draw):
        order = draw.choice(("BCx", "xCB", "CBx", "Bx", "xC", "x"))
        choices = super().draw(draw) | {"order": order, "residual": False, "B": False, "C": False}
        return choices | {"final": draw.choice((None, None, "returned"))}

    def copies(self, c):
        return "B" not in c["order"]

    def specs(self, c):
        specs = super().specs(c)
        batch, dim, seqlen = specs.pop("x").shape
        return {"packed": Spec((batch, len(c["order"]) * dim, seqlen), DTYPES[c["dtype"]], "input", True), **specs}

    def call(self, t, c):
        options = {name: t.get(name) for name in ("bias", "seq_idx", "initial_states", "cu_seqlens")}
        options |= {name: c[name] for name in ("activation", "order", "round_products")}
        found = causeway.causal_conv1d_gated_packed(
            t["packed"], t["weight"], return_final_states=c["final"] == "returned", **options
        )
        return found if isinstance(found, tuple) else (found,)

    def parts(self, t, c):
        dim = t["packed"].shape[1] // len(c["order"])
        thirds = {name: t["packed"][:, at * dim : (at + 1) * dim] for at, name in enumerate(c["order"])}
        return [dict(t, **thirds, silu=c["activation"] is not None)]


class QKV(Function):
    """causal_conv1d_qkv of one tensor, or of three."""

    outputs = 3

    def __init__(self, is_three):
        super().__init__()
        self.name, self.is_three, self.results = ("qkv3", True, 6) if is_three else ("qkv", False, 4)

    def draw(self, draw):
        choices = super().draw(draw) | {"residual": False, "final": draw.choice((None, None, "returned"))}
        del choices["dim"]
        same = draw.random() < 0.5
        for part in "qkv":
            choices[f"heads_{part}"] = draw.choice((0, 1, 1, 2, 3))
            choices[f"head_dim_{part}"] = choices["head_dim_q"] if same and part != "q" else draw.choice((1, 2, 4, 5))
            for name in ("bias", "states"):
                choices[f"{name}_{part}"] = draw.random() < 0.8
        choices["l2norm"] = draw.choice(("qk", "qk", "q", "k", "", "qkv", "v"))
        return choices | {"scale": draw.choice((1.0, 0.5, -2.0)), "eps": draw.choice((1e-6, 1e-3, 0.25))}

    def sizes(self, c):
        return tuple(c[f"heads_{part}"] * c[f"head_dim_{part}"] for part in "qkv")

    def specs(self, c):
        if not self.is_three:
            return super().specs({**c, "dim": sum(self.sizes(c))})
        specs = {}
        for part, size in zip("qkv", self.sizes(c)):
            has = {name: c[name] and c[f"{name}_{part}"] for name in ("bias", "states")}
            for name, spec in super().specs({**c, **has, "dim": size}).items():
                specs[name if name in ("seq_idx", "cu_seqlens") else f"{name}.{part}"] = spec
        return specs

    def options(self, c):
        scale = c["scale"] if "q" in c["l2norm"] else 1.0
        dims = tuple(c[f"head_dim_{part}"] for part in "qkv")
        options = {"head_dim": dims, "l2norm": tuple(c["l2norm"]), "scale": scale, "eps": c["eps"]}
        return options | {"activation": c["activation"]} | ({} if self.is_three else {"sizes": self.sizes(c)})

    def given(self, t, c):
        """x, weight, bias and initial_states, as the function takes them."""
        names = "x", "weight", "bias", "initial_states"
        if not self.is_three:
            return {name: t.get(name) for name in names}
        threes = {name: tuple(t.get(f"{name}.{part}") for part in "qkv") for name in names}
        return {name: three if any(one is not None for one in three) else None for name, three in threes.items()}

    def call(self, t, c):
        indices = {name: t.get(name) for name in ("seq_idx", "cu_seqlens")}
        has_states = c["final"] == "returned"
        found = causeway.causal_conv1d_qkv(**self.given(t, c), **indices, return_final_states=has_states, **self.options(c))
        if not has_states:
            return tuple(found)
        results, states = found
        return (*results, *(states if self.is_three else (states,)))

    def parts(self, t, c):
        given = self.given(t, c)
        if not self.is_three:
            axes = {"x": 1, "weight": 0, "bias": 0, "initial_states": 1}
            given = {name: None if value is None else value.split(self.sizes(c), axes[name]) for name, value in given.items()}
        parts = []
        for at, part in enumerate("qkv"):
            scale = self.options(c)["scale"] if part == "q" else 1.0
            norm = {"head_dim": c[f"head_dim_{part}"], "scale": scale if part in c["l2norm"] else None, "eps": c["eps"]}
            tensors = {name: None if three is None else three[at] for name, three in given.items()}
            indices = {name: t.get(name) for name in ("seq_idx", "cu_seqlens")}
            parts.append({**tensors, **indices, **norm, "silu": c["activation"] is not None})
        return parts

    def finals(self, finals, c):
        if c["final"] != "returned":
            return []
        return finals if self.is_three else [torch.cat(finals, 1)]


class Gemm(Operation):
    """gemm, and its gradients as functions."""

    is_product, twice = True, "gemm"

    def __init__(self):
        self.name, self.results = "gemm", 2
        self.outputs = self.results

    def draw(self, draw):
        sizes = {name: draw.choice((0, 1, 2, 3, 5, 8, 17, 40)) for name in "MKN"}
        way = draw.choice(("gemm", "gemm", "gemm", "grad_a", "grad_b", "grad_ab"))
        return sizes | {"dtype": draw.choice(("f16", "bf16")), "algorithm": draw.choice(("fast", "exact")), "way": way}

    def specs(self, c):
        of, M, K, N = DTYPES[c["dtype"]], c["M"], c["K"], c["N"]
        shapes = {"grad_c": (M, N), "a": (M, K), "b": (K, N)}
        names = {"gemm": "ab", "grad_a": ("grad_c", "b"), "grad_b": ("grad_c", "a"), "grad_ab": ("grad_c", "a", "b")}
        return {name: Spec(shapes[name], of, "input", c["way"] == "gemm") for name in names[c["way"]]}

    def call(self, t, c):
        function = getattr(causeway, "gemm" if c["way"] == "gemm" else f"gemm_{c['way']}")
        found = function(*t.values(), algorithm=c["algorithm"])
        return found if isinstance(found, tuple) else (found,)

    def operands(self, t, c):
        """The factors of each product."""
        pairs = {"gemm": lambda: (t["a"], t["b"]), "a": lambda: (t["grad_c"], t["b"].T), "b": lambda: (t["a"].T, t["grad_c"])}
        ways = ["gemm"] if c["way"] == "gemm" else c["way"].removeprefix("grad_")
        return [pairs[way]() for way in ways]

    def truth(self, t, c):
        return [a @ b for a, b in self.operands(t, c)]

    def terms(self, name, c):
        return c["M"] + c["K"] + c["N"] + 8

    def extra(self, name, c, dtype):
        # Two products, each of them rounded, are the gradient of what both gradients are made of.
        return 2 * reference.UNIT[dtype] if c["way"] == "grad_ab" else 0.0

    def outs(self, tensors, choices):
        return {}


class VarlenStates(Operation):
    """causal_conv1d_varlen_states."""

    has_gradients, outputs = False, 0

    def __init__(self):
        self.name, self.results = "varlen_states", 1

    def draw(self, draw):
        return {
            "seqlen": draw.choice((0, 1, 3, 9, 20)), "dim": draw.choice((0, 1, 3, 8)), "sequences": draw.randint(1, 4),
            "state_len": draw.choice((0, 1, 3, 7)), "dtype": draw.choice(tuple(DTYPES)), "long": draw.random() < 0.5,
        }  # fmt: skip

    def specs(self, c):
        kind = torch.int64 if c["long"] else torch.int32
        return {
            "x": Spec((c["seqlen"], c["dim"]), DTYPES[c["dtype"]]),
            "cu_seqlens": Spec((c["sequences"] + 1,), kind, "cu_seqlens"),
        }

    def call(self, t, c):
        return (causeway.causal_conv1d_varlen_states(t["x"], t["cu_seqlens"], c["state_len"]),)

    def truth(self, t, c):
        ends, rows = t["cu_seqlens"].tolist(), []
        for start, end in zip(ends, ends[1:]):
            row = torch.cat([t["x"].new_zeros(c["state_len"], c["dim"]), t["x"][start:end]])
            rows.append(row[len(row) - c["state_len"] :].T)
        return [torch.stack(rows)]


class Update(Operation):
    """causal_conv1d_update, and those of gated and of q, k and v."""

    has_gradients = False

    def __init__(self, kind):
        self.kind, self.name = kind, {"": "update", "gated": "gated_update", "qkv": "qkv_update"}[kind]
        self.results = self.outputs = 3 if kind == "qkv" else 1

    def draw(self, draw):
        c = sizes(draw) | {"seqlen": draw.choice((None, 1, 2, 3, 5, 0)), "ring": draw.random() < 0.4}
        c |= {"pool": draw.random() < 0.4, "longer": draw.choice((0, 0, 1, 4))}
        if self.kind == "gated":
            c |= {"B": draw.random() < 0.8, "C": draw.random() < 0.8, "round_products": draw.random() < 0.3}
        if self.kind == "qkv":
            others = QKV(False).draw(draw)
            c |= {name: others[name] for name in ("l2norm", "scale", "eps")}
            c |= {name: value for name, value in others.items() if name.startswith(("heads_", "head_dim_"))}
        return c

    def specs(self, c):
        of, of_weight = DTYPES[c["dtype"]], DTYPES[c["weight_dtype"]]
        dim = sum(QKV(False).sizes(c)) if self.kind == "qkv" else c["dim"]
        x = Spec((c["batch"], dim) if c["seqlen"] is None else (c["batch"], dim, c["seqlen"]), of, "input", True)
        rows = c["batch"] + 2 if c["pool"] else c["batch"]
        specs = {"x": x, "conv_state": Spec((rows, dim, c["width"] - 1 + c["longer"]), of, "out")}
        specs["weight"] = Spec((dim, c["width"]), of_weight)
        if c["bias"]:
            specs["bias"] = Spec((dim,), of_weight)
        if self.kind == "gated":
            specs |= {gate: x for gate in "BC" if c[gate]}
        if c["ring"]:
            specs["cache_seqlens"] = Spec((c["batch"],), torch.int32, "seen")
        if c["pool"]:
            specs["conv_state_indices"] = Spec((c["batch"],), torch.int32, "rows")
        return specs

    def call(self, t, c):
        others = {name: t.get(name) for name in ("bias", "cache_seqlens", "conv_state_indices")}
        given = t["x"], t["conv_state"], t["weight"]
        if self.kind == "qkv":
            return tuple(causeway.causal_conv1d_qkv_update(*given, **others, **QKV(False).options(c)))
        others["activation"] = c["activation"]
        if self.kind == "gated":
            others["round_products"] = c["round_products"]
            x, *rest = given
            return (causeway.causal_conv1d_gated_update(t.get("B"), x, t.get("C"), *rest, **others),)
        return (causeway.causal_conv1d_update(*given, **others),)

    def parts(self, t, c):
        """A convolution from the history of each row on."""
        t = dict(t)
        states, before = t.pop("conv_state"), c["width"] - 1
        rows = t.pop("conv_state_indices").tolist() if c["pool"] else range(c["batch"])
        seen = t.pop("cache_seqlens").tolist() if c["ring"] else [0] * c["batch"]
        histories = []
        for row, count in zip(rows, seen):
            state = states[max(row, 0)]
            at = [(count - before + i) % state.shape[1] for i in range(before)] if c["ring"] else range(c["longer"], c["longer"] + before)
            histories.append(state[:, list(at)])
        dim = states.shape[1]
        t["initial_states"] = torch.stack(histories) if histories else states.new_zeros(0, dim, before)
        for name in ("x", "B", "C"):
            if t.get(name) is not None and t[name].ndim == 2:
                t[name] = t[name].unsqueeze(-1)
        if self.kind == "qkv":
            return QKV(False).parts(t, {**c, "index": None})
        return [dict(t, silu=c["activation"] is not None)]

    def truth(self, t, c):
        return [self.placed(reference.result(part)[0], t, c) for part in self.parts(t, c)]

    def placed(self, y, t, c):
        """With the axes of x, and zeros where a row has no state."""
        if c["pool"]:
            y = y * (t["conv_state_indices"] >= 0).view(-1, *[1] * (y.ndim - 1))
        return y if c["seqlen"] is not None else y.squeeze(1 if self.kind == "qkv" else 2)

    def outs(self, t, c):
        states, x = t["conv_state"].clone(), t["x"] * t["B"] if t.get("B") is not None else t["x"]
        x = x.unsqueeze(-1) if x.ndim == 2 else x
        rows = t["conv_state_indices"].tolist() if c["pool"] else range(c["batch"])
        for at, row in enumerate(rows):
            if row < 0:
                continue
            if c["ring"]:
                for i in range(x.shape[2] if states.shape[2] else 0):
                    states[row, :, (int(t["cache_seqlens"][at]) + i) % states.shape[2]] = x[at, :, i]
            else:
                joined = torch.cat([states[row], x[at]], 1)
                states[row] = joined[:, x.shape[2] :]
        return {"conv_state": states}

    def finals(self, finals, c):
        return []

    def terms(self, name, c):
        return 3 * c["width"] + 16 + max(c.get(f"head_dim_{part}", 0) for part in "qkv")
