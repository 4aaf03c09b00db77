"""The convolution over the ranks of a process group against one process, values and gradients."""

import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402
import torch.distributed as dist  # noqa: E402

WORKER = pathlib.Path(__file__).with_name("parallel_worker.py")


def run(world, directory, backend):
    """Starts all ranks, and waits for them."""
    ranks = [
        subprocess.Popen(
            [sys.executable, WORKER, str(rank), str(world), directory / "rendezvous", backend],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        errors = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    # One that fails ends the others.
    assert not any(rank.returncode for rank in ranks), "\n".join(error[-3000:] for error in errors)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_gloo(world, tmp_path):
    run(world, tmp_path, "gloo")


@pytest.mark.gpu
def test_nccl(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    run(2, tmp_path, "nccl")


def test_one_rank_is_an_ordinary_call(tmp_path):
    from causeway import parallel

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        x, weight = torch.randn(2, 3, 7), torch.randn(3, 4)
        assert torch.equal(parallel.causal_conv1d_fn(x, weight), causeway.causal_conv1d_fn(x, weight))
    finally:
        dist.destroy_process_group()
