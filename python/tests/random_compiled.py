"""Contexts of random calls that stand between other operations in a compiled graph, with results that are changed afterwards.

What is around them gives exact results, so a compiled graph has the bits of the eager one whatever its compiler fuses.
"""

import torch

from random_contexts import context


class _Surroundings:
    """What is around a call, as it is drawn once: what is changed before it, the factors of its inputs, and what becomes of its results."""

    def __init__(self, run):
        draw = run.random
        self.halved = {name for name, spec in run.specs.items() if spec.kind == "input" and draw.random() < 0.6}
        self.negated = {name for name, spec in run.specs.items() if spec.kind == "out" and draw.random() < 0.3}
        self.after = draw.choice(("sum", "mul_", "part", None))
        # Of two equal calls a compiler may make one, and its gradient of a sum is another rounding.
        self.is_twice = draw.random() < 0.3 and not run.is_recorded
        # States that are returned may be those of the caller, or new.
        self.changed = run.operation.outputs if "final_states_out" in run.specs else None

    def around(self, f):
        """The call with all that."""

        def call(given):
            for name in self.negated:
                given[name].neg_()
            given = {name: -0.5 * tensor if name in self.halved else tensor for name, tensor in given.items()}
            results = f(given)
            others = results[self.changed :] if self.changed is not None else ()
            results = [self._finished(result) for result in results[: self.changed]]
            # A second call has the same inputs, and changes what the first has written.
            return (*results, *others, *(f(given) if self.is_twice else ()))

        return call

    def _finished(self, result):
        if self.after == "sum":
            return result + result
        if self.after == "mul_":
            return result.mul_(4.0)
        if self.after == "part":
            # A view, which autograd follows.
            result[..., :1].neg_()
        return result


def _compiled(run, **options):
    """A compiled call against the same without a compiler."""
    torch._dynamo.reset()
    surroundings, dynamic = _Surroundings(run), run.random.choice((None, True, False))
    expected = run.attempt(surroundings.around)
    found = run.attempt(lambda f: torch.compile(surroundings.around(f), fullgraph=True, dynamic=dynamic, **options))
    run.compare(found, expected, "compiled against eager")


@context("compile, surrounded", only=("fn", "packed", "qkv", "qkv_update", "GatedShortConv"), turns=True)
def _(run):
    _compiled(run, backend="aot_eager")
    return
    yield


# Inductor compiles C++ for seconds: calls of these alone, which differ in what they keep, write and return.
@context("compile, inductor", only=("fn", "qkv_update", "CausalConv1d"), turns=True)
def _(run):
    _compiled(run, mode=run.random.choice((None, "reduce-overhead")))
    return
    yield


_SIZES = "batch", "seqlen", "M", "K", "N", "sequences"


@context("compile, other sizes", only=("fn", "qkv", "gemm", "qkv_update"), turns=True)
def _(run):
    """A function that is compiled for dynamic shapes, called with several."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda given: run.operation.call(given, run.choices), fullgraph=True, dynamic=True, backend="aot_eager")
    # Not a count of positions that is None, of an update.
    sizes = {name: value for name, value in run.choices.items() if name in _SIZES and value is not None}
    seed, number = map(int, run.key.split(":"))
    for more in (2, 1):
        other = type(run)(seed, number, {**run.choices, **{name: value + more for name, value in sizes.items()}}, run.device)
        run.compare(other.attempt(lambda f: compiled), other.attempt(), f"{more} more of all")
    yield run.attempt(lambda f: compiled)
