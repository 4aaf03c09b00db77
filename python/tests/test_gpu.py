"""What only a GPU shows: streams, graphs, no waiting, memory, several devices."""

import json
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402

pytestmark = pytest.mark.gpu


def draw(*shape, seed=0, dtype=torch.float32, device="cuda"):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


def step(x, weight, bias, dy):
    """Forward and backward."""
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
    y = causeway.causal_conv1d_fn(*leaves, activation="silu")
    return y.detach(), *torch.autograd.grad(y, leaves, dy)


def test_nothing_waits_for_the_gpu():
    x, weight, bias = draw(2, 64, 512), draw(64, 4), draw(64)
    state, dy = draw(2, 64, 3), draw(2, 64, 512, seed=1)
    step(x, weight, bias, dy)
    causeway.causal_conv1d_update(x[..., 0], state, weight, bias)
    busy, event = draw(4096, 4096), torch.cuda.Event()
    busy @ busy
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        # Milliseconds of other work: a call that waited would return after it.
        for _ in range(20):
            busy = busy @ busy
        step(x, weight, bias, dy)
        causeway.causal_conv1d_update(x[..., 0], state, weight, bias)
        event.record()
        assert not event.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_work_goes_to_the_current_stream():
    weight, streams = draw(256, 4), [torch.cuda.Stream() for _ in range(3)]
    inputs = [draw(2, 256, 1024, seed=i) for i in range(3)]
    expected = [step(x, weight, weight[:, 0], x) for x in inputs]
    torch.cuda.synchronize()
    wrong = torch.zeros((), device="cuda", dtype=torch.int64)
    for _ in range(1000):
        for x, stream, truth in zip(inputs, streams, expected):
            with torch.cuda.stream(stream):
                # Read right after it is written on the same stream: a launch elsewhere would race.
                copy = x.clone()
                found = step(copy, weight, weight[:, 0], copy)
                different = sum((a != b).any().long() for a, b in zip(found, truth))
                wrong.add_(different)
    torch.cuda.synchronize()
    assert wrong.item() == 0


@pytest.mark.parametrize("width", [4, 6], ids=["warm", "first use inside of the capture"])
def test_graph_capture(width):
    dtype = torch.bfloat16
    x, weight, bias, dy = (
        draw(2, 64, 640, dtype=dtype),
        draw(64, width),
        draw(64),
        draw(2, 64, 640, seed=9, dtype=dtype),
    )
    state = torch.zeros(2, 64, width - 1, device="cuda", dtype=dtype)
    if width == 4:
        step(x, weight, bias, dy)
        causeway.causal_conv1d_update(x[..., 0], state.clone(), weight, bias, "silu")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step(x, weight, bias, dy)
        decoded = causeway.causal_conv1d_update(x[..., 0], state, weight, bias, "silu")
    for seed in range(5):
        x.copy_(draw(2, 64, 640, seed=seed, dtype=dtype))
        before = state.clone()
        graph.replay()
        # Eager launches on the same stream, right behind the replay.
        expected = step(x, weight, bias, dy)
        assert all(torch.equal(a, b) for a, b in zip(outputs, expected))
        assert torch.equal(decoded, causeway.causal_conv1d_update(x[..., 0], before, weight, bias, "silu"))
        assert torch.equal(state, before)


def test_compiled_with_cuda_graphs():
    x, weight, bias = draw(2, 64, 256), draw(64, 4), draw(64)
    function = lambda x: causeway.causal_conv1d_fn(x * 2, weight, bias, activation="silu") + 1  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):
        x = draw(2, 64, 256, seed=seed)
        torch.testing.assert_close(compiled(x), function(x))


SUITE = """
name = "memory"
about = "What the test of memory runs."

[[conv1d]]
name = "step"
shape = [4, 512, 2048]
width = 4
bias = true
activation = "silu"
dtype = ["f32", "bf16"]
layout = ["channel-first", "channel-last"]
"""


@pytest.fixture(scope="module")
def planned_workspaces(tmp_path_factory):
    """What `causeway plan` says about the backward calls of SUITE, by case."""
    if (
        torch.cuda.get_device_capability() != (9, 0)
        or torch.cuda.get_device_properties(0).multi_processor_count != 132
    ):
        pytest.skip("the command plans for an H200")
    suite = tmp_path_factory.mktemp("suite") / "memory.toml"
    suite.write_text(SUITE)
    command = [sys.executable, "-m", "causeway", "plan", "--arch", "sm_90a", "--json", "--suite", suite]
    plans = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["plans"]
    return {plan["case"]: plan["workspace_bytes"] for plan in plans if plan["call"] == "conv1d-backward"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("layout", ["channel-first", "channel-last"])
def test_memory_is_the_outputs_and_the_planned_workspace(planned_workspaces, layout, dtype):
    x, dy = draw(4, 512, 2048, dtype=dtype), draw(4, 512, 2048, seed=3, dtype=dtype)
    if layout == "channel-last":
        x, dy = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (x, dy))
    leaves = [t.requires_grad_() for t in (x, draw(512, 4, dtype=dtype), draw(512, dtype=dtype))]

    def run():
        y = causeway.causal_conv1d_fn(*leaves, activation="silu")
        return torch.autograd.grad(y, leaves, dy)

    requested = lambda which: torch.cuda.memory_stats()[f"requested_bytes.all.{which}"]  # noqa: E731
    run()
    torch.cuda.synchronize()
    allocated, before = torch.cuda.memory_allocated(), requested("current")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(1000):
        run()
    # The thread of autograd may hold the last results for a moment longer than their reader does, where others keep the host busy.
    until = time.monotonic() + 2
    while torch.cuda.memory_allocated() != allocated and time.monotonic() < until:
        time.sleep(0.01)
    assert torch.cuda.memory_allocated() == allocated
    # y is there while the gradients are made.
    outputs = x.nbytes + sum(leaf.nbytes for leaf in leaves)
    name = f"step-4x512x2048-{layout}-{'f32' if dtype == torch.float32 else 'bf16'}-silu"
    assert requested("peak") - before == outputs + planned_workspaces[name]


def test_other_devices_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    x, weight, bias, dy = draw(2, 64, 128), draw(64, 4), draw(64), draw(2, 64, 128, seed=4)
    expected = step(x, weight, bias, dy)
    assert torch.cuda.current_device() == 0
    found = step(*(t.to("cuda:1") for t in (x, weight, bias, dy)))
    assert all(t.device == torch.device("cuda:1") for t in found) and torch.cuda.current_device() == 0
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(found, expected))
    with pytest.raises(RuntimeError, match="weight is on cuda:1: expected cuda:0"):
        causeway.causal_conv1d_fn(x, weight.to("cuda:1"))


def test_float64_is_refused_in_words():
    with pytest.raises((TypeError, NotImplementedError), match="float64"):
        causeway.causal_conv1d_fn(draw(2, 4, 8).double(), draw(4, 4).double())


def test_deterministic_algorithms_are_always_on():
    torch.use_deterministic_algorithms(True)
    try:
        x, weight, bias, dy = draw(8, 256, 2048), draw(256, 4), draw(256), draw(8, 256, 2048, seed=5)
        runs = [step(x, weight, bias, dy) for _ in range(5)]
    finally:
        torch.use_deterministic_algorithms(False)
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0]))


@pytest.mark.parametrize("algorithm", ["exact"])
def test_gemm_equals_the_cpu_bit_for_bit(algorithm):
    a, b, c = (draw(*s, dtype=torch.float16) for s in [(33, 47), (47, 29), (33, 29)])
    for function, operands in [(causeway.gemm, (a, b)), (causeway.gemm_grad_ab, (c, a, b))]:
        found = function(*operands, algorithm=algorithm)
        expected = function(*(t.cpu() for t in operands), algorithm=algorithm)
        for one, other in zip(found, expected):
            assert torch.equal(one.cpu(), other)
