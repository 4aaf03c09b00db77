"""Where a random call is made: what surrounds the kernels and has to change no bit of what they give.

Each context takes a `random_run.Run` and gives outcomes, all of which have to be that of the plain eager call. What they have apart
from that, such as an error that has to come, they check themselves.
"""

import concurrent.futures
import contextlib
import functools

import torch
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

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

    def __init__(self, name, function, needs, turns=False, casts=False, without=(), only=None):
        self.name, self.function, self.needs, self.without, self.only = name, function, needs, without, only
        # Whether inputs or gradients of results may have another memory order in the backward pass.
        self.turns = turns
        # Whether tensors are cast, so that results are not those of a plain call.
        self.casts = casts

    def takes(self, operation):
        """Whether this operation can be called there."""
        if self.needs == "gradients" and not operation.has_gradients:
            return False
        if operation.name in self.without or (self.only is not None and operation.name not in self.only):
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


def _autocast(run, **options):
    return torch.autocast(torch.device(run.device).type, **options)


@context("autocast", casts=True)
def _(run):
    with _autocast(run, dtype=run.autocast_dtype):
        found = run.attempt()
    run.compare(found, run.cast(run.autocast_dtype), "autocast against tensors that are cast before")
    return
    yield


@context("autocast, compiled", only=("fn", "packed", "qkv", "update", "GatedShortConv"), casts=True, turns=True)
def _(run):
    torch._dynamo.reset()
    with _autocast(run, dtype=run.autocast_dtype):
        found = run.attempt(lambda f: torch.compile(f, fullgraph=True, backend="aot_eager"))
    run.compare(found, run.cast(run.autocast_dtype), "autocast around compiled calls against tensors that are cast before")
    return
    yield


@context("autocast, off inside")
def _(run):
    """Where it is disabled again, it means nothing; in the backward pass neither."""
    with _autocast(run, dtype=run.random.choice((torch.bfloat16, torch.float16))):
        leaves = run.fresh()
        with _autocast(run, enabled=False):
            results = run.results(leaves)
            # The backward pass of a projection is PyTorch's, and would be cast.
            gradients = run.gradients(results, leaves) if run.operation.name == "GatedShortConv" else None
        gradients = run.gradients(results, leaves) if gradients is None else gradients
        yield run.outcome(results, gradients, leaves)


class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@context("dispatch mode")
def _(run):
    with Watch():
        yield run.attempt()


@context("dispatch mode in backward", "gradients")
def _(run):
    leaves = run.fresh()
    results = run.results(leaves)
    with Watch():
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
