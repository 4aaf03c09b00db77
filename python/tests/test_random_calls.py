"""Random calls of every operation in every context; and that wrong results are noticed."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numpy")

import causeway  # noqa: E402
import random_calls  # noqa: E402
from random_run import CELLS, Run  # noqa: E402

SEED, CHUNKS = 1, 8


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_operation_in_every_context(chunk):
    """One call for each of them at least, in which there is something to compare."""
    failed, missed = [], []
    for number in range(chunk, len(CELLS), CHUNKS):
        for other in range(number, 20 * len(CELLS), len(CELLS)):
            run = Run(SEED, other)
            words = random_calls.outcome(run)
            if words is not None:
                failed.append(f"{words}\n    {random_calls.command(SEED, other)}")
            if words is not None or run.compared:
                break
        else:
            missed.append((run.operation.name, run.context.name))
    assert not failed, "\n".join(failed)
    assert not missed


def drawn(operation, context, wants=None, **changes):
    """The first numbers of calls of an operation in a context, with a dtype and sizes in which there is something to be wrong."""
    at = next(at for at, (o, c) in enumerate(CELLS) if (o.name, c.name) == (operation, context))
    for number in range(at, at + 40 * len(CELLS), len(CELLS)):
        run = Run(SEED, number, changes)
        if wants is None or wants in run.wanted:
            return number
    raise AssertionError("no such call was drawn")


class Scaled(torch.autograd.Function):
    """x itself, with a gradient that is slightly wrong."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        return dx * 1.001


def wrong_element(real):
    def call(x, *others, **options):
        y = real(x, *others, **options)
        with torch.no_grad():
            y[-1, -1, -1] += 0.01
        return y

    return call


def wrong_gradient(real):
    return lambda x, *others, **options: real(Scaled.apply(x), *others, **options)


def another_dtype(real):
    def call(*given, **options):
        found = real(*given, **options)
        return (found[0].double(), *found[1:]) if isinstance(found, tuple) else found.double()

    return call


def changed_input(real):
    def call(x, *others, **options):
        found = real(x, *others, **options)
        # Not so that autograd sees it.
        x.data.add_(1)
        return found

    return call


def lost_graph(real):
    return lambda x, *others, **options: real(x.detach(), *others, **options)


def wrong_where(condition):
    """A call that is right but under a condition."""

    def make(real):
        def call(x, *others, **options):
            return real(x * 1.01 if condition() else x, *others, **options)

        return call

    return make


def leaking(real):
    """A call in which what is no number reaches another channel."""

    def call(*given, **options):
        floats = [t for t in (*given, *options.values()) if isinstance(t, torch.Tensor) and t.is_floating_point()]
        return real(*given, **options) + 0 * sum(t.detach().sum() for t in floats)

    return call


def not_counted(real):
    """A call that writes states without a word to autograd."""

    def call(*given, **options):
        out = options.pop("final_states_out", None)
        y, states = real(*given, **{**options, "return_final_states": True})
        if out is not None:
            out.data.copy_(states.detach())
        return y

    return call


def accepting(real):
    """A call that takes everything."""

    def call(x, *others, **options):
        try:
            return real(x, *others, **options)
        except Exception:
            return x

    return call


def naming_another(real):
    """A call that refuses what it has to, but blames nothing that it was given. Words hold letters that are names of arguments."""

    def call(*given, **options):
        try:
            return real(*given, **options)
        except Exception as error:
            raise type(error)("padding has no axes: expected a number, as its base is") from error

    return call


SMALL = {"batch": 2, "dim": 3, "seqlen": 5, "width": 3, "dtype": "f32", "weight_dtype": "f32", "index": None, "final": None, "dy.0": "contiguous",
         "layout.x": "contiguous"}  # fmt: skip

FAULTS = {
    "an element": (wrong_element, "plain", "out of bounds"),
    "a gradient": (wrong_gradient, "plain", "gradient of x"),
    "a dtype": (another_dtype, "plain", "dtype torch.float64"),
    "an input": (changed_input, "plain", "x was changed"),
    "a gradient that is missing": (lost_graph, "plain", "gradient of x is None|require gradients|differentiated Tensors"),
    "under no_grad": (wrong_where(lambda: not torch.is_grad_enabled()), "no_grad", "result 0"),
    "compiled": (wrong_where(torch.compiler.is_compiling), "compile, aot_eager", "result 0"),
    "in inference mode": (wrong_where(torch.is_inference_mode_enabled), "inference_mode", "result 0"),
    "under autocast": (wrong_where(lambda: torch.is_autocast_enabled("cpu")), "autocast", "result 0"),
    "in a transform": (wrong_where(lambda: torch._C._functorch.peek_interpreter_stack() is not None), "func.vjp", "result 0"),
    "mapped": (wrong_where(lambda: torch._C._functorch.peek_interpreter_stack() is not None), "vmap", "of vmap"),
    "in a dispatch mode": (wrong_where(lambda: torch._C._len_torch_dispatch_stack() > 0), "dispatch mode", "result 0"),
    "a refusal": (accepting, "refused", "not refused"),
    "the name in a refusal": (naming_another, "refused", "lacks"),
    "compiled, between others": (wrong_where(torch.compiler.is_compiling), "compile, surrounded", "result 0"),
    "of other sizes": (wrong_where(torch.compiler.is_compiling), "compile, other sizes", "result 0"),
    "compiled under autocast": (wrong_where(torch.compiler.is_compiling), "autocast, compiled", "result 0"),
    "what is no number": (leaking, "no number", "elements differ"),
    "a row of a jacobian": (wrong_where(lambda: torch._C._functorch.peek_interpreter_stack() is not None), "jacobian", "row "),
    "forward mode": (lambda real: lambda x, *others, **options: x * 1, "jvp", "not refused|out of bounds"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_noticed(fault, monkeypatch):
    make, context, words = FAULTS[fault]
    number = drawn("fn", context, "x", **SMALL)
    assert random_calls.failure(SEED, number, SMALL) is None
    monkeypatch.setattr(causeway, "causal_conv1d_fn", make(causeway.causal_conv1d_fn))
    found = random_calls.failure(SEED, number, SMALL)
    assert found is not None and any(word in found for word in words.split("|")), found


@pytest.mark.parametrize("name, fault", [("causal_conv1d_qkv", "a gradient"), ("causal_conv1d_gated_packed", "a gradient"), ("gemm", "a gradient")])
def test_wrong_gradients_of_others_are_noticed(name, fault, monkeypatch):
    operation, wanted = {"causal_conv1d_qkv": ("qkv", "x"), "causal_conv1d_gated_packed": ("packed", "packed"), "gemm": ("gemm", "a")}[name]
    sizes = {"M": 5, "K": 3, "N": 4, "way": "gemm", "dtype": "f16"} if name == "gemm" else SMALL | {"heads_q": 1, "heads_k": 2, "heads_v": 1}
    number = drawn(operation, "plain", wanted, **sizes)
    assert random_calls.failure(SEED, number, sizes) is None
    real = getattr(causeway, name)
    monkeypatch.setattr(causeway, name, lambda x, *others, **options: real(x * 1.01 if name == "gemm" else Scaled.apply(x), *others, **options))
    assert "out of bounds" in random_calls.failure(SEED, number, sizes)


def test_a_state_that_is_not_changed_is_noticed(monkeypatch):
    changes = SMALL | {"seqlen": 2, "ring": False, "pool": False}
    number = drawn("update", "plain", **changes)
    assert random_calls.failure(SEED, number, changes) is None
    real = causeway.causal_conv1d_update
    monkeypatch.setattr(causeway, "causal_conv1d_update", lambda x, state, *others, **options: real(x, state.clone(), *others, **options))
    assert "conv_state" in random_calls.failure(SEED, number, changes)


def test_a_failing_call_is_made_simpler(monkeypatch):
    """As long as it fails in the same way; and what is printed makes it again."""
    number = drawn("fn", "plain", "x", dtype="bf16")
    monkeypatch.setattr(causeway, "causal_conv1d_fn", another_dtype(causeway.causal_conv1d_fn))
    changes, words = random_calls.shrunk(SEED, number, random_calls.failure(SEED, number))
    assert "dtype torch.float64" in words
    run = Run(SEED, number, changes)
    assert run.choices["dtype"] == "f32" and run.choices["width"] == 1 and not run.choices["bias"]
    monkeypatch.setattr("sys.argv", random_calls.command(SEED, number, changes).split()[1:])
    with pytest.raises(SystemExit) as ended:
        random_calls.main()
    assert ended.value.code == 1


@pytest.mark.parametrize("operation", ["fn", "gemm"])
def test_another_name_in_a_refusal_is_noticed(operation, monkeypatch):
    """Whichever argument is wrong: those of one letter too."""
    first = drawn(operation, "refused")
    numbers = [number for number in range(first, first + 30 * len(CELLS), len(CELLS)) if random_calls.failure(SEED, number) is None]
    assert len(numbers) == 30
    for name in ("causal_conv1d_fn", "gemm", "gemm_grad_a", "gemm_grad_b", "gemm_grad_ab"):
        monkeypatch.setattr(causeway, name, naming_another(getattr(causeway, name)))
    for number in numbers:
        assert "lacks" in (random_calls.failure(SEED, number) or ""), random_calls.command(SEED, number)


def test_what_is_not_written_in_a_transform_is_noticed(monkeypatch):
    """Under vmap and func.grad, where the states that a call gets are not the caller's tensors."""
    real = causeway.causal_conv1d_fn

    def call(x, *others, **options):
        out = options.get("final_states_out")
        if out is not None and torch._C._functorch.peek_interpreter_stack() is not None:
            options["final_states_out"] = out.clone()
        return real(x, *others, **options)

    changes = SMALL | {"final": "out"}
    for context in ("vmap", "vmap of grad", "func.grad"):
        number = drawn("fn", context, "x", **changes)
        assert random_calls.failure(SEED, number, changes) is None
        with monkeypatch.context() as patch:
            patch.setattr(causeway, "causal_conv1d_fn", call)
            assert "final_states_out" in (random_calls.failure(SEED, number, changes) or ""), context


def test_a_write_that_autograd_is_not_told_of_is_noticed(monkeypatch):
    changes = SMALL | {"final": "out"}
    first = drawn("fn", "versions", "x", **changes)
    # A compiled graph copies what it has written into the caller's tensor, and counts that.
    number = next(n for n in range(first, first + 40 * len(CELLS), len(CELLS)) if Run(SEED, n, changes).random.choice(range(5)) < 4)
    assert random_calls.failure(SEED, number, changes) is None
    monkeypatch.setattr(causeway, "causal_conv1d_fn", not_counted(causeway.causal_conv1d_fn))
    assert "final_states_out" in (random_calls.failure(SEED, number, changes) or "")


def test_what_ranks_give_otherwise_is_noticed(monkeypatch):
    """One of two."""
    number = drawn("fn", "over ranks", "x", **SMALL)
    assert random_calls.failure(SEED, number, SMALL) is None
    real = causeway.parallel.causal_conv1d_fn
    monkeypatch.setattr(causeway.parallel, "causal_conv1d_fn", lambda x, *others, **options: real(x * 1.01, *others, **options))
    assert "of both ranks" in (random_calls.failure(SEED, number, SMALL) or "")


def test_outputs_and_placements_that_are_wrong_are_noticed(monkeypatch):
    number = drawn("fn", "outputs given", "x", **SMALL)
    assert random_calls.failure(SEED, number, SMALL) is None
    real = causeway.kernels.causal_conv1d_forward
    with monkeypatch.context() as patch:
        patch.setattr(causeway.kernels, "causal_conv1d_forward", lambda x, *others, **options: real(x * 1.01, *others, **options))
        assert "y" in (random_calls.failure(SEED, number, SMALL) or "")
    at = drawn("fn", "DTensor", "x", **SMALL)
    number = next(n for n in range(at, at + 20 * len(CELLS), len(CELLS)) if _compares(n))
    distributed = wrong_where(lambda: torch.distributed.is_initialized())
    monkeypatch.setattr(causeway, "causal_conv1d_fn", distributed(causeway.causal_conv1d_fn))
    assert "result 0" in (random_calls.failure(SEED, number, SMALL) or "")


def _compares(number):
    """Whether a call is made, and not refused."""
    run = Run(SEED, number, SMALL)
    return random_calls.outcome(run) is None and run.compared > 1


def test_strides_and_signs_of_zeros_are_noticed(monkeypatch):
    real, changes = causeway.causal_conv1d_fn, SMALL | {"activation": None}
    number = drawn("fn", "no_grad", "x", **changes)
    assert random_calls.failure(SEED, number, changes) is None

    def turned(*given, **options):
        y = real(*given, **options)
        return y if torch.is_grad_enabled() else y.transpose(1, 2).contiguous().transpose(1, 2)

    def zero(*given, **options):
        return real(*given, **options) * (0.0 if torch.is_grad_enabled() else -0.0)

    monkeypatch.setattr(causeway, "causal_conv1d_fn", turned)
    assert "strides" in random_calls.failure(SEED, number, changes)
    monkeypatch.setattr(causeway, "causal_conv1d_fn", zero)
    monkeypatch.setattr(Run, "check_values", lambda run: None)
    assert "elements differ" in random_calls.failure(SEED, number, changes)


def test_a_state_that_is_no_exact_copy_is_noticed(monkeypatch):
    """By one unit in the last place, which a sum might have."""
    real, changes = causeway.causal_conv1d_fn, SMALL | {"final": "returned"}
    number = drawn("fn", "plain", "x", **changes)
    assert random_calls.failure(SEED, number, changes) is None

    def call(*given, **options):
        y, states = real(*given, **options)
        return y, states * (1 + 2.0**-23)

    monkeypatch.setattr(causeway, "causal_conv1d_fn", call)
    assert "result 1" in random_calls.failure(SEED, number, changes)


def test_a_failure_that_does_not_come_again_is_told():
    number = drawn("fn", "plain", "x")
    assert random_calls.shrunk(SEED, number, "result 0: as it was seen") == ({}, "result 0: as it was seen (not again)")


@pytest.mark.parametrize("options, code", [
    (["--operation", "gemm", "--context", "second derivative"], 2),
    (["--count", "0"], 1),
    (["--operation", "fn", "--context", "plain", "--count", "2"], 0),
])  # fmt: skip
def test_the_program_ends(options, code, monkeypatch):
    """Where no call is asked for that can be drawn, with an error."""
    monkeypatch.setattr("sys.argv", ["random_calls.py", *options])
    with pytest.raises(SystemExit) as ended:
        random_calls.main()
    assert int(ended.value.code) == code


def test_a_call_is_drawn_again_alone():
    for number in range(0, len(CELLS), 7):
        first, second = Run(3, number), Run(3, number)
        assert first.choices == second.choices
        assert all(torch.equal(one, other) for one, other in zip(first.fresh().values(), second.fresh().values()))
