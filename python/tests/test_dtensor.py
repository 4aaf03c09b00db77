"""DTensor and FSDP2: sharded calls on two ranks against one process, values and gradients."""

import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor.experimental", reason="this PyTorch cannot be given strategies")

WORKER = pathlib.Path(__file__).with_name("dtensor_worker.py")


def test_two_ranks(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, WORKER, str(rank), "2", tmp_path / "rendezvous"], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, error in zip(ranks, errors):
        assert rank.returncode == 0, error[-4000:]
