"""The convolution over the ranks of a process group against one process, values and gradients."""

import os
import pathlib
import queue
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402
import torch.distributed as dist  # noqa: E402

WORKER = pathlib.Path(__file__).with_name("parallel_worker.py")


def run(world, directory, backend, **environment):
    """Starts all ranks, and waits for them."""
    ranks = [
        subprocess.Popen(
            [sys.executable, WORKER, str(rank), str(world), directory / "rendezvous", backend],
            env=dict(os.environ, **environment),
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
@pytest.mark.parametrize("peer_memory", ["0", "1"])
def test_nccl(tmp_path, peer_memory):
    """Messages of NCCL's, and through memory that both GPUs see."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    if peer_memory == "1" and not torch.cuda.can_device_access_peer(0, 1):
        pytest.skip("the GPUs do not see each other's memory")
    run(2, tmp_path, "nccl", CAUSEWAY_PEER_MEMORY=peer_memory)


class Mailboxes:
    """What `_Ring` is, for ranks that are threads."""

    def __init__(self, rank, size, boxes):
        self.rank, self.size, self.boxes = rank, size, boxes
        self.previous = rank - 1 if rank > 0 else None
        self.next = rank + 1 if rank + 1 < size else None

    def prepare(self, device, *tensors):
        pass

    def send(self, rank, *tensors):
        self.boxes[self.rank, rank].put([tensor.clone() for tensor in tensors])

    def receive(self, rank, *tensors):
        def received():
            for tensor, sent in zip(tensors, self.boxes[rank, self.rank].get(timeout=60)):
                tensor.copy_(sent)
            return tensors

        return received

    def lengths(self, x):
        for rank in range(self.size):
            self.boxes["lengths", rank].put((self.rank, x.shape[-1]))
        return [length for _, length in sorted(self.boxes["lengths", self.rank].get(timeout=60) for _ in range(self.size))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["channel-first", "channel-last"])
@pytest.mark.parametrize("overlap_bytes", [0, 2**62])
@pytest.mark.parametrize("kind", ["plain", "states", "some-indices", "long-sequences", "cu_seqlens"])
def test_ranks_in_threads(device, dtype, layout, kind, overlap_bytes, monkeypatch):
    """Slices of a hundred positions and more on one device, in the layouts and dtypes that kernels are made for."""
    monkeypatch.setattr(causeway.parallel, "_OVERLAP_BYTES", overlap_bytes)
    monkeypatch.syspath_prepend(WORKER.parent)
    from parallel_worker import call, make

    lengths = (160, 5, 131)
    world, total, boxes = len(lengths), sum(lengths), {}
    for rank in range(world):
        boxes["lengths", rank] = queue.Queue()
        boxes |= {(rank, other): queue.Queue() for other in range(world)}
    rank_of_thread = threading.local()
    monkeypatch.setattr(causeway.parallel, "_Ring", lambda group: Mailboxes(rank_of_thread.value, world, boxes))

    def of_layout(t):
        return t.transpose(1, 2).contiguous().transpose(1, 2) if layout == "channel-last" else t.contiguous()

    def converted(name, value):
        if not value.is_floating_point():
            return value.to(device)
        value = value.to(device, torch.float32 if name in ("weight", "bias") else dtype)
        return of_layout(value) if value.dim() == 3 else value

    whole = {name: converted(name, value) for name, value in make(kind, total).items()}
    found, errors = {}, []

    def work(rank):
        rank_of_thread.value = rank
        here = slice(sum(lengths[:rank]), sum(lengths[: rank + 1]))
        sliced = "x", "residual", "dy", "seq_idx"
        part = {n: v[..., here] if n in sliced else v for n, v in whole.items()}
        part = {n: of_layout(v) if v.dim() == 3 else v for n, v in part.items()}
        try:
            with torch.autograd.set_multithreading_enabled(False):
                found[rank] = call(causeway.parallel.causal_conv1d_fn, part)
        except Exception as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(found) == world
    y, final_states, gradients = call(causeway.causal_conv1d_fn, dict(whole))
    assert torch.equal(torch.cat([found[rank][0] for rank in range(world)], -1), y)
    states = sum(found[rank][1].float() for rank in range(world))
    torch.testing.assert_close(states, final_states.float(), atol=0, rtol=0)
    close = dict(atol=2e-4, rtol=2e-4) if dtype == torch.float32 else dict(atol=5e-2, rtol=2e-2)
    for name, expected in gradients.items():
        parts = [found[rank][2][name].float() for rank in range(world)]
        joined = torch.cat(parts, -1) if name in ("x", "residual") else sum(parts)
        torch.testing.assert_close(joined, expected.float(), msg=lambda m: f"{name}: {m}", **close)


WRONG = [
    (dict(bias=torch.zeros(4)), ValueError, "bias has dim 4: expected 3"),
    (dict(seq_idx=torch.zeros(2, 7, dtype=torch.int64)), TypeError, "seq_idx has dtype i64"),
    (dict(residual=torch.zeros(2, 3, 6)), ValueError, "residual has seqlen 6"),
    (dict(initial_states=torch.zeros(2, 3, 4)), ValueError, "initial_states has length 4"),
    (dict(initial_states=torch.zeros(7, 3, 3), cu_seqlens=torch.tensor([0, 14])), ValueError, "x has batch 2"),
    (dict(weight=None), TypeError, "weight is a NoneType"),
]


@pytest.mark.parametrize("change, error, words", WRONG)
def test_errors_come_before_messages(change, error, words, monkeypatch):
    """A ring that nobody answers on: what is wrong on every rank is found before any of them waits."""
    monkeypatch.setattr(causeway.parallel, "_Ring", lambda group: Mailboxes(1, 3, {}))
    arguments = dict(x=torch.zeros(2, 3, 7), weight=torch.zeros(3, 4)) | change
    with pytest.raises(error, match=words):
        causeway.parallel.causal_conv1d_fn(**arguments)


def test_a_group_without_this_process():
    x, weight = torch.zeros(2, 3, 7), torch.zeros(3, 4)
    with pytest.raises(ValueError, match="group is .*: expected a process group that this process is a rank of"):
        causeway.parallel.causal_conv1d_fn(x, weight, group=dist.GroupMember.NON_GROUP_MEMBER)
    with pytest.raises(ValueError, match="process group has not been initialized"):
        causeway.parallel.causal_conv1d_fn(x, weight)


def test_one_rank_is_an_ordinary_call(tmp_path):
    from causeway import parallel

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        x, weight = torch.randn(2, 3, 7), torch.randn(3, 4)
        assert torch.equal(parallel.causal_conv1d_fn(x, weight), causeway.causal_conv1d_fn(x, weight))
    finally:
        dist.destroy_process_group()
