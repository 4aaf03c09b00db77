"""Contexts of random calls in which it counts what is written, refused or changed: results given, states, versions of tensors, modules."""

import contextlib
import copy
import io
import pickle
import re

import torch

import causeway
import random_reference as reference
from random_contexts import MODULES, Watch, context, expect
from random_operations import LAYOUTS, laid_out


@context("inference tensors")
def _(run):
    """Outside of inference mode: the results, or one of PyTorch's errors, with nothing written."""
    leaves = run.fresh()
    names = [name for name in leaves if name not in run.wanted and run.random.random() < 0.6]
    for name in names:
        with torch.inference_mode():
            leaves[name] = run.leaf(name, leaves[name].detach().clone(), False)
    before = {name: leaves[name].clone() for name, spec in run.specs.items() if spec.kind == "out"}
    try:
        outcome = run.attempt(leaves=leaves)
    except RuntimeError as error:
        allowed = "Inference tensors cannot be saved for backward", "Inplace update to inference tensor outside InferenceMode is not allowed"
        expect(any(words in str(error) for words in allowed), f"with {names}: {error}")
        for name, value in before.items():
            # What is saved is looked at behind the call.
            if "saved" not in str(error):
                run.same(leaves[name], value, f"{name} after an error")
        run.compared += 1
        return
    yield outcome


@context("versions")
def _(run):
    """Autograd hears of what is written, and of nothing else: a graph that keeps it says so."""
    leaves, kept, before = run.fresh(), {}, {}
    for name, tensor in leaves.items():
        if tensor.is_floating_point() and tensor.numel():
            # Shares its version with the tensor.
            kept[name] = (torch.ones_like(tensor, requires_grad=True) * tensor.detach()).sum()
        before[name] = tensor._version
    how = run.random.choice(("eager", "no_grad", "view", "dispatch mode", "compiled"))
    f, given = run.bound(leaves)
    if how == "view":
        with torch.no_grad():
            given = {name: tensor if tensor.requires_grad else tensor[...] for name, tensor in given.items()}
    elif how == "compiled":
        torch._dynamo.reset()
        f = torch.compile(f, fullgraph=True, backend="aot_eager")
    with torch.no_grad() if how == "no_grad" else Watch() if how == "dispatch mode" else contextlib.nullcontext():
        f(given)
    for name, loss in kept.items():
        is_written = run.specs[name].kind == "out"
        # A state of no position, or of no row, may count as written or not.
        expect((leaves[name]._version != before[name]) == is_written, f"{how}: {name} {'is written' if is_written else 'counts as written'}")
        if is_written:
            run.refused(RuntimeError, "modified by an inplace operation", loss.backward)
        else:
            loss.backward()
            run.compared += 1
    return
    yield


class _Outputs:
    """Outputs of a call, in any memory order, with sevens in and between their elements."""

    def __init__(self, run):
        self.run, self.tensors = run, {}

    def __call__(self, name, shape, dtype):
        layout = self.run.random.choice([layout for layout in LAYOUTS if not layout.startswith("expanded")])
        tensor = laid_out(torch.full(shape, 7, dtype=dtype, device=self.run.device), layout)
        self.tensors[name] = tensor, tensor._version
        return tensor

    def check(self, expected, compare):
        """They are as expected, where something is, nothing beside them is written, and autograd has been told."""
        for name, (tensor, version) in self.tensors.items():
            values = tensor.clone()
            expect(tensor._version != version or not tensor.numel(), f"{name} does not count as written")
            tensor.fill_(7)
            memory = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
            expect((memory == 7).all(), f"memory beside {name} was changed")
            if name in expected:
                value = expected[name]
                compare(values if value is None else values.to(value.dtype), value, name)


@context("outputs given", only=("fn", "gated", "update", "gated_update", "varlen_states"))
def _(run):
    """`causeway.kernels`, with outputs that lie anywhere."""
    t, c, given, plain = run.fresh(wanted=()), run.choices, _Outputs(run), run.plain
    kernels, x, silu = causeway.kernels, t["x"], c.get("activation") is not None
    gates = {gate: t.get(gate) for gate in "BC"}
    if run.operation.name == "varlen_states":
        kernels.causal_conv1d_varlen_states(x, t["cu_seqlens"], given("states", plain.results[0].shape, x.dtype))
        given.check({"states": plain.results[0]}, run.same)
        return
    options = {**gates, "round_products": c.get("round_products", False)}
    if "conv_state" in t:
        indices = t.get("cache_seqlens"), t.get("conv_state_indices")
        out = given("out", x.shape, x.dtype)
        kernels.causal_conv1d_update(x, t["conv_state"], t["weight"], t.get("bias"), silu, *indices, out, **options)
        given.check({"out": plain.results[0]}, run.same)
        run.same(t["conv_state"], plain.outs["conv_state"], "conv_state")
        return
    y, states = given("y", x.shape, x.dtype), None
    final = plain.outs.get("final_states_out", plain.results[-1])
    if c["final"]:
        states = given("final_states", final.shape, x.dtype)
    indices = t.get("seq_idx"), t.get("cu_seqlens")
    kernels.causal_conv1d_forward(
        x, t["weight"], t.get("bias"), t.get("initial_states"), *indices, t.get("residual"), silu, y, states, **options
    )
    given.check({"y": plain.results[0], "final_states": final}, run.same)
    if not run.wanted:
        return
    # Those that PyTorch negates only where it reads them are refused.
    dy, dstates = (None if dy is None else dy.resolve_neg() for dy in (*run.dys(plain.results), None)[:2])
    given = _Outputs(run)
    places = {name: None for name in ("x", "weight", "bias", "initial_states", "B", "C")}
    summed_in = t["weight"].dtype if x.dtype == torch.float64 else run.random.choice((t["weight"].dtype, torch.float32))
    for name in places:
        if t.get(name) is not None:
            places[name] = given(f"d{name}", t[name].shape, summed_in if reference.is_sum(name) else t[name].dtype)
    dx, dweight, dbias, dinitial_states, dB, dC = places.values()
    kernels.causal_conv1d_backward(
        x, t["weight"], t.get("bias"), torch.zeros_like(x) if dy is None else dy, t.get("initial_states"), *indices, dstates, silu,
        dx, dweight, dbias, dinitial_states, dB=dB, dC=dC, **options,
    )  # fmt: skip

    def compare(value, gradient, name):
        # With sums in float32, SiLU is evaluated as precisely. Where dx lies otherwise, terms are added in another order.
        is_same = summed_in == t["weight"].dtype and not reference.is_sum(name.removeprefix("d"))
        (run.same if is_same else run.near)(value, gradient, name)

    given.check({f"d{name}": gradient for name, gradient in plain.gradients.items() if name != "residual"}, compare)
    return
    yield


@context("data loader", only=("fn", "packed", "qkv", "update", "gemm", "QKVShortConv"))
def _(run):
    """In a forked process, whose results come back through shared memory."""
    calls = [lambda: run.results(run.fresh(wanted=()))] * 2

    class Calls(torch.utils.data.Dataset):
        def __len__(self):
            return len(calls)

        def __getitem__(self, index):
            return calls[index]()

    for results in torch.utils.data.DataLoader(Calls(), batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=60):
        for at, (one, other) in enumerate(zip(results, run.plain.results, strict=True)):
            run.same(one, other, f"result {at} of a forked process")
    return
    yield


@context("changed later", "gradients")
def _(run):
    """An input or a result that is changed after the call: gradients are right, or there is an error, and never wrong ones."""
    leaves = run.fresh()
    results = run.results(leaves)
    names = sorted(leaves)
    target = run.random.choice(names + ["result"])
    tensor = run.random.choice(results) if target == "result" else leaves[target]
    if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride())):
        return
    with torch.no_grad():
        tensor.copy_(torch.zeros_like(tensor))
    try:
        found = run.gradients(results, leaves)
    except RuntimeError as error:
        expect("modified by an inplace operation" in str(error) or "is a view" in str(error), f"another error after {target} was changed: {error}")
        run.compared += 1
        return
    for name in run.wanted:
        run.same(found[name], run.plain.gradients[name], f"gradient of {name} after {target} was changed")
    return
    yield


@context("hooks", "gradients", turns=True)
def _(run):
    """A hook of a result sees its gradient; one of an input, the input's; and what they return counts."""
    leaves = run.fresh()
    f, given = run.bound(leaves)
    seen = []
    for name in run.wanted:
        leaves[name].register_hook(lambda g: seen.append(g) or g.clone())
    results = f(given)
    for r in results:
        if r.requires_grad:
            r.register_hook(lambda g: None if g is None else laid_out(g, "transposed"))
    gradients = run.gradients(results, leaves)
    expect(len(seen) == sum(g is not None for g in gradients.values()), f"{len(seen)} hooks ran")
    yield run.outcome(results, gradients, leaves)


@context("copy of the module", "module")
def _(run):
    leaves = run.fresh()
    f, given = run.bound(leaves)
    module = f.module
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    loaded = run.operation.make(run.choices, run.device)
    loaded.load_state_dict(torch.load(buffer, weights_only=True))
    for name, copied in (("deepcopy", copy.deepcopy(module)), ("pickle", pickle.loads(pickle.dumps(module))), ("state_dict", loaded)):
        expect(repr(copied) == repr(module), f"{name} shows itself otherwise")
        others = dict(copied.named_parameters())
        if name == "state_dict":
            for key, parameter in others.items():
                parameter.requires_grad_(key in run.wanted)
        fresh = {**run.fresh(), **others}
        f.module = copied
        given = {key: fresh[key] for key in given}
        results = f(given)
        yield run.outcome(results, run.gradients(results, fresh), fresh, strides=False)


def wrong_tensors(run, leaves):
    """(name, wrong value, kinds of exceptions): what takes a tensor's place."""
    draw = run.random
    names = [name for name in run.specs if name in leaves]
    name = draw.choice(names)
    tensor = leaves[name].detach()
    kinds = [
        (tensor.to(torch.complex64), TypeError),
        (tensor.tolist(), TypeError),
        (tensor.cpu().numpy() if tensor.dtype != torch.bfloat16 else "x", TypeError),
        # One axis more may be right for an x of two axes, whose third is left out.
        (tensor[None, None] if name == "x" and tensor.ndim == 2 else tensor[None], ValueError),
        (tensor.to("meta"), (RuntimeError, NotImplementedError)),
    ]
    if tensor.ndim == 2:
        kinds.append((tensor.to_sparse(), RuntimeError))
    if tensor.is_floating_point():
        kinds.append((tensor.to(torch.int16), TypeError))
    return name, *draw.choice(kinds)


def about(name, is_first=False):
    """A pattern of messages about an argument, which begin with its name: a word such as "x" or "a" may be part of any other."""
    # Of three tensors, errors may call each by its name.
    word = f"({'|'.join(name.split('.'))})"
    patterns = [rf"^{word}(\[\d\])? (is|has|requires|of one call shares)\b"]
    if is_first:
        # The other tensors have to be as the first is: where it is wrong, they are said not to be.
        patterns += [rf"^\w+ (is|has) .*: expected .*, (as|where) {word} (is|has)\b", rf"^\w+ is a torch\.Tensor and {word} a numpy\.ndarray: "]
    return re.compile("|".join(patterns))


@context("refused", without=(*MODULES, *(f"{name}.step" for name in MODULES)))
def _(run):
    """A wrong argument: an exception of the documented type with its name, and nothing is written."""
    leaves = run.fresh()
    name, value, kind = wrong_tensors(run, leaves)
    outs = {n: leaves[n].clone() for n, spec in run.specs.items() if spec.kind == "out"}
    run.refused(kind, about(name, name == next(iter(run.specs))), run.operation.call, {**leaves, name: value}, run.choices)
    for out, before in outs.items():
        if out != name:
            run.same(leaves[out], before, f"{out} after a refusal")
    return
    yield


@context("written states", without=("gemm", "varlen_states", "packed", "qkv", "qkv3", *MODULES))
def _(run):
    """What is written may not require a gradient, share its memory, or lie in an input."""
    written = [name for name, spec in run.specs.items() if spec.kind == "out"]
    if not written:
        return
    (name,) = written
    leaves = run.fresh()
    tensor = leaves[name]
    f, given = run.bound(leaves)
    memory = {n: t.detach().clone() for n, t in leaves.items()}
    run.refused(RuntimeError, f"{name} requires a gradient", f, {**given, name: tensor.clone().requires_grad_()})
    for axis, size in enumerate(tensor.shape):
        if size > 1 and tensor.numel() and "final" not in name and run.operation.kind != "qkv":
            run.refused(RuntimeError, about(name), f, {**given, name: tensor.narrow(axis, 0, 1).clone().expand(tensor.shape)})
    for other, before in memory.items():
        run.same(leaves[other].detach(), before, f"{other} after a refusal")
    return
    yield
