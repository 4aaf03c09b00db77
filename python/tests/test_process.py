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


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_forked_process_has_threads_of_its_own():
    x, weight = np.ones((4, 256, 1024), np.float32), np.ones((256, 4), np.float32)
    expected = causeway.causal_conv1d_fn(x, weight)
    child = os.fork()
    if child == 0:
        same = np.array_equal(causeway.causal_conv1d_fn(x, weight), expected)
        os._exit(0 if same else 1)
    deadline = time.monotonic() + 60
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child waits for threads that only its parent has")
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(status) == 0


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


def test_the_command():
    run = lambda *words: subprocess.run(  # noqa: E731
        [sys.executable, "-m", "causeway", *words], capture_output=True, text=True
    )
    done = run("doctor", "--json")
    assert done.returncode == 0 and done.stdout.startswith("{"), done.stderr
    assert run("verify", "--suite", "no-such-suite").returncode == 2
    assert run("--version").stdout.split()[1] == causeway.__version__
