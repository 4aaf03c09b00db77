"""Where a random call is made: what surrounds the kernels and has to change no bit of what they give.

Each context takes a `random_run.Run` and gives outcomes, all of which have to be that of the plain eager call. What they have apart
from that, such as an error that has to come, they check themselves.
"""

import concurrent.futures
import contextlib
import copy
import functools
import io
import pickle
import re

import torch
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

import random_reference as reference
from random_operations import Spec, drawn, laid_out

CONTEXTS = {}

MODULES = "CausalConv1d", "GatedShortConv", "QKVShortConv"


class Wrong(AssertionError):
    """A result that is not what it has to be."""


def context(name, needs="", **options):
    """Registers a context. It needs "gradients", "module", or nothing; options are those of `Context`."""

    def register(function):
        CONTEXTS[name] = Context(name, function, needs, **options)
        return function

    return register


class Context:
    """A context with what may be said of it."""

    def __init__(self, name, function, needs, turns=False, without=()):
        self.name, self.function, self.needs, self.without = name, function, needs, without
        # Whether inputs or gradients of results may have another memory order in the backward pass.
        self.turns = turns

    def takes(self, operation):
        """Whether this operation can be called there."""
        if self.needs == "gradients" and not operation.has_gradients:
            return False
        if operation.name in self.without:
            return False
        return self.needs != "module" or operation.is_module


def expect(condition, words):
    """Raises `Wrong` unless the condition holds."""
    if not condition:
        raise Wrong(words)


@context("plain")
def _(run):
    yield run.attempt()


@context("no_grad")
def _(run):
    with torch.no_grad():
        outcome = run.attempt(with_gradients=False)
    expect(not any(outcome.flags), "a result requires a gradient under no_grad")
    yield outcome


@context("inference_mode")
def _(run):
    with torch.inference_mode():
        yield run.attempt(with_gradients=False)
        leaves = {n: run.leaf(n, t.detach().clone(), False) for n, t in run.fresh(wanted=()).items()}
        yield run.attempt(with_gradients=False, leaves=leaves)


@context("frozen")
def _(run):
    """Gradients enabled, and nothing that requires one."""
    outcome = run.attempt(with_gradients=False, leaves=run.fresh(wanted=()))
    expect(not any(outcome.flags), "a result requires a gradient that no input does")
    yield outcome


@context("checkpoint", "gradients")
def _(run):
    yield run.attempt(lambda f: lambda given: checkpoint.checkpoint(f, given, use_reentrant=False))


@context("checkpoint, early stop off", "gradients")
def _(run):
    with checkpoint.set_checkpoint_early_stop(False):
        yield run.attempt(lambda f: lambda given: checkpoint.checkpoint(f, given, use_reentrant=False))


@context("checkpoint, reentrant", "gradients")
def _(run):
    def wrap(f):
        def call(given):
            # It looks for tensors among its arguments alone.
            return checkpoint.checkpoint(lambda *tensors: f(dict(zip(given, tensors))), *given.values(), use_reentrant=True)

        return call

    leaves = run.fresh()
    if any(tensor.requires_grad for tensor in run.bound(leaves)[1].values()):
        yield run.attempt(wrap, leaves=leaves, through="backward")


@context("checkpoint, selective", "gradients")
def _(run):
    def policy(ctx, operator, *arguments, **options):
        kinds = checkpoint.CheckpointPolicy
        return kinds.MUST_SAVE if "causeway" in str(operator) else kinds.PREFER_RECOMPUTE

    contexts = functools.partial(checkpoint.create_selective_checkpoint_contexts, policy)
    yield run.attempt(lambda f: lambda given: checkpoint.checkpoint(f, given, use_reentrant=False, context_fn=contexts))


def _compiled(run, backend, **options):
    torch._dynamo.reset()
    dynamic = run.random.choice((None, None, True))
    yield run.attempt(lambda f: torch.compile(f, fullgraph=True, backend=backend, dynamic=dynamic, **options))


@context("compile, eager")
def _(run):
    yield from _compiled(run, "eager")


@context("compile, aot_eager", turns=True)
def _(run):
    yield from _compiled(run, "aot_eager")


@context("compile, backward", "gradients", turns=True)
def _(run):
    """Compiled autograd traces the backward pass of an eager forward pass."""
    from torch._dynamo import compiled_autograd

    torch._dynamo.reset()
    with compiled_autograd._enable(torch.compile(fullgraph=True, backend="aot_eager")):
        yield run.attempt(through="backward")


@context("autocast")
def _(run):
    with torch.autocast(torch.device(run.device).type, torch.bfloat16):
        found = run.attempt()
    run.compare(found, run.cast(torch.bfloat16), "autocast against tensors that are cast before")
    return
    yield


@context("func.grad", "gradients", turns=True)
def _(run):
    # The gradients of results are those of a product, in its memory order.
    if run.wanted:
        yield run.transformed(lambda loss: torch.func.grad(loss, has_aux=True))


@context("func.vjp", "gradients")
def _(run):
    # What is written may not be captured.
    if not run.wanted or "final_states_out" in run.specs:
        return
    function, wanted, others = run.functional()
    results, pull = torch.func.vjp(lambda wanted: function(wanted, others), wanted)
    dys = [torch.zeros_like(r) if dy is None else dy for r, dy in zip(results, run.dys(results))]
    (gradients,) = pull(tuple(dys))
    yield run.outcome(results, gradients, {}, flags=False)


@context("func.functionalize")
def _(run):
    """PyTorch's functionalization has no rule for functions of autograd's, and says so."""
    leaves = run.fresh(wanted=())
    try:
        results = torch.func.functionalize(lambda given: run.operation.call(given, run.choices))(leaves)
    except RuntimeError as error:
        expect("NYI: Functionalize rule" in str(error) or "custom (non-ATen) operator" in str(error), str(error))
        run.compared += 1
        return
    yield run.outcome(results, None, leaves)


@context("jvp", "gradients")
def _(run):
    """Forward mode is refused."""
    if not run.wanted:
        return
    function, wanted, others = run.functional()
    name = "gemm" if run.operation.is_product else "causal convolution"
    call = lambda: torch.func.jvp(lambda wanted: function(wanted, others), (wanted,), (wanted,))  # noqa: E731
    run.refused(NotImplementedError, f"{name} has no forward-mode gradient", call)


@context("vmap")
def _(run):
    run.mapped(with_gradients=False)
    return
    yield


@context("vmap of grad", "gradients")
def _(run):
    if run.wanted:
        run.mapped(with_gradients=True)
    return
    yield


@context("saved tensors on the host", "gradients")
def _(run):
    with torch.autograd.graph.save_on_cpu():
        yield run.attempt()


@context("saved tensors as copies", "gradients", turns=True)
def _(run):
    """In another memory order, once each."""
    hooks = lambda t: laid_out(t, "sliced"), lambda t: t.contiguous()  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        yield run.attempt()


@context("saved tensors forbidden", "gradients")
def _(run):
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        yield run.attempt()


@context("backward twice", "gradients")
def _(run):
    leaves = run.fresh()
    results = run.results(leaves)
    for retain in (True, False):
        yield run.outcome(results, run.gradients(results, leaves, retain_graph=retain), leaves)


@context("grad accumulated", "gradients")
def _(run):
    """Into .grad, by two backward passes of two forward passes; and where a tensor is read twice."""
    if not run.wanted:
        return
    leaves = run.fresh()
    for count in (1, 2):
        results = run.results(leaves)
        run.gradients(results, leaves, through="backward")
        for name in run.wanted:
            one = run.plain.gradients[name]
            found, expected = leaves[name].grad, one if one is None or count == 1 else one + one
            run.same(found, expected, f"gradient of {name} after {count} backward passes")
            is_result = found is not None and found.numel() and found.data_ptr() in run.pointers(results)
            expect(not is_result, f".grad of {name} is a result")
    return
    yield


@context("subset", "gradients")
def _(run):
    """The gradients of some inputs, one after the other."""
    leaves = run.fresh()
    results = run.results(leaves)
    for name in run.wanted:
        found = run.gradients(results, leaves, names=(name,), retain_graph=True)
        run.same(found[name], run.plain.gradients[name], f"gradient of {name} alone")
    return
    yield


@context("create_graph", "gradients")
def _(run):
    leaves = run.fresh()
    results = run.results(leaves)
    yield run.outcome(results, run.gradients(results, leaves, create_graph=True), leaves)


@context("second derivative", "gradients", without=("gemm", "GatedShortConv"))
def _(run):
    """Refused. That of a product is not, since its gradients are products; nor is that of projections."""
    names = [name for name in run.wanted if name != "residual"]
    leaves = run.fresh()
    results = run.results(leaves)
    if not names or not any(r.requires_grad and dy is not None for r, dy in zip(results, run.dys(results))):
        return
    found = run.gradients(results, leaves, names=names, create_graph=True, dys_require=True)
    firsts = [one for one in found.values() if one is not None and one.requires_grad]
    if not firsts:
        return
    call = lambda: torch.autograd.grad([one.sum() for one in firsts], [leaves[n] for n in names], allow_unused=True)  # noqa: E731
    run.refused(NotImplementedError, "cannot be differentiated twice", call)


@context("batched gradients", "gradients")
def _(run):
    leaves = run.fresh()
    results = run.results(leaves)
    dys = run.dys(results)
    used = [(r, dy) for r, dy in zip(results, dys) if dy is not None and r.requires_grad]
    if not used or not run.wanted:
        return
    outputs, dys = zip(*used)
    dys = [torch.stack([dy, torch.zeros_like(dy), dy]) for dy in dys]
    names = [name for name in run.wanted if run.plain.gradients[name] is not None]
    found = torch.autograd.grad(outputs, [leaves[n] for n in names], dys, is_grads_batched=True)
    for name, gradient in zip(names, found):
        # On a GPU, more channels may have another kernel.
        compare = run.near if reference.is_sum(name) or run.operation.is_module or run.device != "cpu" else run.same
        for at in (0, 2):
            compare(gradient[at], run.plain.gradients[name], f"batched gradient of {name}")
        expect(not gradient[1].any(), f"batched gradient of {name} of zeros is not zero")
    return
    yield


class _Watch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@context("dispatch mode")
def _(run):
    with _Watch():
        yield run.attempt()


@context("dispatch mode in backward", "gradients")
def _(run):
    leaves = run.fresh()
    results = run.results(leaves)
    with _Watch():
        yield run.outcome(results, run.gradients(results, leaves), leaves)


@context("make_fx")
def _(run):
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = run.random.choice(("real", "fake", "symbolic"))
    function = lambda given: run.operation.call(given, run.choices)  # noqa: E731
    with torch.no_grad():
        traced = make_fx(function, tracing_mode=mode)(run.fresh(wanted=()))
        leaves = run.fresh(wanted=())
        yield run.outcome(traced(leaves), None, leaves)


@context("export")
def _(run):
    leaves = run.fresh(wanted=())
    f, given = run.bound(leaves)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            # So that parameters are the model's own.
            self.f = f

        def forward(self, given):
            return self.f(given)

    exported = torch.export.export(Model(), (given,), strict=run.random.random() < 0.3).module()
    leaves = run.fresh(wanted=())
    given = {name: leaves[name] for name in given}
    yield run.outcome(exported(given), None, leaves if len(given) == len(leaves) else given)


@context("thread")
def _(run):
    """The whole call in another thread; and its backward pass alone."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool.submit(run.attempt).result()
        leaves = run.fresh()
        results = run.results(leaves)
        yield run.outcome(results, pool.submit(run.gradients, results, leaves).result(), leaves)


@context("threads at once")
def _(run):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        yield from [made.result() for made in [pool.submit(run.attempt) for _ in range(4)]]


@context("fake tensors")
def _(run):
    """Of meta and fake tensors: shapes, dtypes, strides of results, flags, and which gradients there are."""
    fake = torch._subclasses.FakeTensorMode()
    for to in (lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta"), fake.from_tensor):
        with fake if to == fake.from_tensor else contextlib.nullcontext():
            leaves = {name: run.leaf(name, to(t.detach()), name in run.wanted) for name, t in run.fresh().items()}
            results = run.results(leaves)
            gradients = run.gradients(results, leaves) if run.is_recorded else {}
        # States may be the caller's tensor, laid out as it is, or new.
        run.same_kind(results, run.plain.results, "result", strides="final_states_out" not in run.specs)
        run.same_flags([r.requires_grad for r in results])
        run.same_kind(gradients.values(), (run.plain.gradients or {}).values(), "gradient", strides=False)
    return
    yield


@context("default device")
def _(run):
    """Another default device and dtype mean nothing for tensors that are there."""
    leaves = run.fresh()
    before = torch.get_default_dtype()
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    try:
        results = run.results(leaves)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(before)
    yield run.outcome(results, run.gradients(results, leaves), leaves)


@context("deterministic")
def _(run):
    """New memory is full of NaN, so what is not written shows."""
    torch.use_deterministic_algorithms(True)
    try:
        yield run.attempt()
    finally:
        torch.use_deterministic_algorithms(False)


@context("anomaly", "gradients")
def _(run):
    with torch.autograd.detect_anomaly(check_nan=True):
        yield run.attempt()


class _Subclass(torch.Tensor):
    """As libraries derive them: with all of PyTorch's own behaviour."""


@context("subclass")
def _(run):
    leaves = run.fresh()
    f, given = run.bound(leaves)
    first = next(iter(given))
    results = f({**given, first: given[first].as_subclass(_Subclass)})
    results = [r.as_subclass(torch.Tensor) for r in results]
    yield run.outcome(results, run.gradients(results, leaves), leaves)


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
    names = name.split(".")
    if name == "packed":
        # Its parts are views of it, and have its dtype and device: kernels see no other x, and say that x is wrong.
        names.append("x")
    word = f"({'|'.join(names)})"
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


def gradient_of_result(run, result, at):
    """The gradient of a result, laid out as it is drawn; None where the result is not used."""
    kind = run.choices.get(f"dy.{at}", "contiguous")
    if kind is None:
        return None
    if kind == "sum":
        return torch.ones((), dtype=result.dtype, device=result.device).expand(result.shape)
    dy = drawn(run.key, f"dy.{at}", Spec(tuple(result.shape), result.dtype), run.choices).to(result.device)
    if kind == "negated":
        if result.dtype not in (torch.float32, torch.float64):
            return dy
        return torch.complex(torch.zeros_like(dy), -dy).conj().imag
    return laid_out(dy, kind)
