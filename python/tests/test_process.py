"""What a call does to its process: threads, forks, memory, the command."""

import gc
import os
import subprocess
import sys
import threading
import time

import causeway
import numpy as np
import pytest
from causeway import kernels

has_large_pages = pytest.mark.skipif(
    not os.path.exists("/sys/kernel/mm/transparent_hugepage"), reason="this system has no large pages"
)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def passes_in_a_fork(check):
    """Whether `check` is true in a forked process, which must not wait for threads that only its parent has."""
    child = os.fork()
    if child == 0:
        passes = False
        try:
            passes = check()
        finally:
            os._exit(0 if passes else 1)
    deadline = time.monotonic() + 60
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child waits for threads that only its parent has")
        time.sleep(0.01)


def test_a_forked_process_has_threads_of_its_own():
    x, weight = np.ones((4, 256, 1024), np.float32), np.ones((256, 4), np.float32)
    expected = causeway.causal_conv1d_fn(x, weight)
    assert passes_in_a_fork(lambda: np.array_equal(causeway.causal_conv1d_fn(x, weight), expected))


# The threads of this process that are causeway's own, by what has to be there already.
OWN_THREADS = """
import os, sys, time
import torch
import causeway

def own():
    tasks = os.listdir("/proc/self/task")
    return [task for task in tasks if open(f"/proc/self/task/{task}/comm").read().startswith("causeway")]

def run_time():
    return sum(int(open(f"/proc/self/task/{task}/schedstat").read().split()[0]) for task in own())

torch.set_num_threads(2)
x, weight = torch.randn(4, 256, 4096), torch.randn(256, 4)
"""

has_openmp = pytest.mark.skipif(sys.platform != "linux", reason="PyTorch's threads are looked for on Linux alone")


def run_python(program):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


@has_openmp
def test_calls_run_on_the_threads_of_pytorch_while_they_are_awake():
    torch = pytest.importorskip("torch")
    if not torch.backends.openmp.is_available() or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this PyTorch has threads of another kind, or they cannot run at the same time")
    # A thread that has no processor at the moment looks like one that sleeps, and other processes may be in the way: one call is enough.
    program = """
def is_pools(call):
    # Whether the pool's threads ran for this call. They look for more work for a moment after one.
    time.sleep(0.01)
    x.sin()
    before = run_time()
    assert torch.equal(call(), expected)
    return run_time() != before

call = lambda: causeway.causal_conv1d_fn(x, weight)
x.sin()
expected = call()
deadline = time.monotonic() + 60
while (on_pool := is_pools(call)) and time.monotonic() < deadline:
    pass
print(on_pool)
x.sin = lambda: time.sleep(2)
print(is_pools(call))
"""
    assert run_python(OWN_THREADS + program) == ["False", "True"]


@has_openmp
def test_threads_that_a_call_starts_have_the_mode_of_the_program():
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has one mode")
    torch.set_flush_denormal(False)
    # Nothing of PyTorch's has started threads before.
    program = """
import numpy as np
import torch, causeway
torch.set_num_threads(2)
x, weight, tiny = np.ones((4, 256, 4096), np.float32), np.ones((256, 4), np.float32), np.full(1 << 22, 1e-38, np.float32)
x, weight, tiny = map(torch.from_numpy, (x, weight, tiny))
torch.set_flush_denormal(True)
causeway.causal_conv1d_fn(x, weight)
print((tiny * 0.5).numpy().view(np.int32).any())
"""
    assert run_python(program) == ["False"]


@has_openmp
def test_one_thread_is_the_calling_one():
    pytest.importorskip("torch")
    program = """
torch.set_num_threads(1)
causeway.causal_conv1d_fn(x, weight)
print(len(own()))
"""
    assert run_python(OWN_THREADS + program) == ["0"]


@has_openmp
def test_a_forked_process_leaves_the_threads_of_pytorch_alone():
    torch = pytest.importorskip("torch")
    x, weight = torch.randn(4, 256, 4096), torch.randn(256, 4)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x.sin()
        expected = causeway.causal_conv1d_fn(x, weight)
        x.sin()
        # PyTorch's own comparison would wait for its threads.
        same = lambda: np.array_equal(causeway.causal_conv1d_fn(x, weight).numpy(), expected.numpy())  # noqa: E731
        assert passes_in_a_fork(same)
    finally:
        torch.set_num_threads(threads)


def test_the_floating_point_mode_of_the_program():
    """Subnormal numbers are kept, whatever thread computes: a library that is linked with -ffast-math flushes them too."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    x, weight, state = draw(4, 64, 400) * 1e-38, draw(64, 4), draw(4, 64, 3) * 1e-38
    a, b = draw(64, 40).half() * 2**-12, draw(40, 32).half() * 2**-12

    def compute():
        y = causeway.causal_conv1d_fn(x.requires_grad_(), weight, activation="silu")
        (dx,) = torch.autograd.grad(y, x, y.detach())
        step = causeway.causal_conv1d_update(x.detach()[..., 0], state.clone(), weight)
        return y, dx, step, causeway.gemm(a, b), causeway.gemm(a, b, algorithm="exact")

    expected, threads = compute(), torch.get_num_threads()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has one mode")
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert all(torch.equal(found, other) for found, other in zip(compute(), expected))
        assert causeway.verify(200, device="cpu").passed
        # The program's own, afterwards as before.
        assert (torch.tensor([1e-38]) * 0.5).item() == 0
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)
    assert (expected[0].abs() < torch.finfo(torch.float32).tiny).sum() > 1000


def test_other_threads_run_during_a_long_call():
    x, weight = np.ones((8, 2048, 4096), np.float32), np.ones((2048, 4), np.float32)
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    causeway.causal_conv1d_fn(x, weight)
    end = time.perf_counter()
    stop.set()
    thread.join()
    assert any(start + 0.2 * (end - start) < t < end - 0.2 * (end - start) for t in ticks)


def test_calls_from_many_threads_agree():
    x, weight = np.random.default_rng(0).random((2, 64, 1024), np.float32), np.ones((64, 4), np.float32)
    expected = causeway.causal_conv1d_fn(x, weight)
    results = []

    def work():
        for _ in range(20):
            results.append(np.array_equal(causeway.causal_conv1d_fn(x, weight), expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80 and all(results)


def test_memory_does_not_grow():
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 128, 512, requires_grad=True)
    weight, state = torch.randn(128, 4, requires_grad=True), torch.zeros(2, 128, 3)

    def step():
        y, final = causeway.causal_conv1d_fn(x, weight, return_final_states=True, activation="silu")
        torch.autograd.grad(y.sum() + final.sum(), (x, weight))
        causeway.causal_conv1d_update(x.detach()[..., 0], state, weight.detach())
        with pytest.raises(ValueError):
            causeway.causal_conv1d_fn(x, weight[:3])

    for _ in range(200):
        step()
    gc.collect()
    before, objects = resident_bytes(), len(gc.get_objects())
    for _ in range(1000):
        step()
    gc.collect()
    # One leaked tensor of 512 KiB per step would be 500 MiB.
    assert resident_bytes() - before < 32 << 20
    assert len(gc.get_objects()) - objects < 200


def wants_large_pages(address):
    """Whether the mapping around an address is marked so."""
    inside = False
    with open("/proc/self/smaps") as file:
        for line in file:
            first, _, rest = line.partition(" ")
            if "-" in first and ":" not in first:
                start, end = (int(bound, 16) for bound in first.split("-"))
                inside = start <= address < end
            elif inside and first == "VmFlags:":
                return "hg" in rest.split()
    raise AssertionError(f"no mapping holds {address:x}")


# So much that the allocator gives a mapping of its own, which nobody had before: 48 MiB.
LARGE = 3, 1024, 4096


def middle(tensor):
    """An address with large pages around it."""
    data = tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.ctypes.data
    return data + tensor.nbytes // 2


@has_large_pages
def test_large_results_come_in_large_pages():
    torch = pytest.importorskip("torch")
    x, weight = torch.randn(LARGE), torch.randn(1024, 4)
    assert not wants_large_pages(middle(x))
    plain = causeway.causal_conv1d_fn(x, weight, activation="silu")
    assert wants_large_pages(middle(plain))
    x.requires_grad_()
    y = causeway.causal_conv1d_fn(x, weight, activation="silu")
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert wants_large_pages(middle(y)) and wants_large_pages(middle(dx))
    packed = torch.randn(3, 3 * 1024, 4096, requires_grad=True)
    (dpacked,) = torch.autograd.grad(causeway.causal_conv1d_gated_packed(packed, weight).sum(), packed)
    assert wants_large_pages(middle(dpacked))
    in_numpy = causeway.causal_conv1d_fn(x.detach().numpy(), weight.numpy(), activation="silu")
    assert wants_large_pages(middle(in_numpy)) and np.array_equal(in_numpy, plain.numpy())


@has_large_pages
def test_memory_of_a_caller_is_left_alone():
    torch = pytest.importorskip("torch")
    x, weight, y = torch.randn(LARGE), torch.randn(1024, 4), torch.empty(LARGE)
    kernels.causal_conv1d_forward(x, weight, None, None, None, None, None, False, y, None)
    assert not wants_large_pages(middle(x)) and not wants_large_pages(middle(y))


@has_large_pages
def test_a_process_without_large_pages():
    """Where the system refuses them, results are the same."""
    program = """
import ctypes, hashlib, sys, numpy, causeway
PR_SET_THP_DISABLE = 41
if sys.argv[1] == "without":
    assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
x, weight = numpy.random.default_rng(0).random((2, 1024, 4096), numpy.float32), numpy.ones((1024, 4), numpy.float32)
print(hashlib.sha256(causeway.causal_conv1d_fn(x, weight).tobytes()).hexdigest())
"""
    run = lambda how: subprocess.run(  # noqa: E731
        [sys.executable, "-c", program, how], capture_output=True, text=True, check=True
    )
    assert run("with").stdout == run("without").stdout


@has_openmp
def test_small_calls_start_no_threads():
    program = """
threads = lambda: len(os.listdir("/proc/self/task"))
weight, bias, state = torch.randn(2048, 4), torch.randn(2048), torch.zeros(8, 2048, 3)
y = causeway.causal_conv1d_fn(torch.randn(1, 256, 64, requires_grad=True), weight[:256], activation="silu")
y.sum().backward()
before = threads()
causeway.causal_conv1d_update(torch.randn(8, 2048), state, weight, bias, "silu")
causeway.causal_conv1d_fn(torch.randn(8, 2048, 1), weight, bias, activation="silu")
causeway.causal_conv1d_fn(torch.randn(1, 256, 64), weight[:256], activation="silu")
causeway.gemm(torch.randn(64, 128).half(), torch.randn(128, 64).half())
print(len(own()), threads() - before)
"""
    pytest.importorskip("torch")
    assert run_python(OWN_THREADS + program) == ["0", "0"]


def test_the_command():
    run = lambda *words: subprocess.run(  # noqa: E731
        [sys.executable, "-m", "causeway", *words], capture_output=True, text=True
    )
    done = run("doctor", "--json")
    assert done.returncode == 0 and done.stdout.startswith("{"), done.stderr
    assert run("verify", "--suite", "no-such-suite").returncode == 2
    assert run("--version").stdout.split()[1] == causeway.__version__
