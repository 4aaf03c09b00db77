"""The convolution over the ranks of a process group against one process, values and gradients."""

import os
import pathlib
import queue
import random
import re
import subprocess
import sys
import threading
import types

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402
import torch.distributed as dist  # noqa: E402
from causeway import _native  # noqa: E402
from causeway._torch import slices  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

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


class Buffers:
    """What buffers in memory that two GPUs see are, on one GPU: what a kernel sends is taken out of its buffer at once."""

    def __init__(self, mailboxes):
        self.mailboxes = mailboxes

    def send_halo_gradient(self, rank, inputs, silu):
        halo = inputs[4]
        made = torch.empty(halo.shape, dtype=halo.dtype, device=halo.device)
        buffer = torch.zeros(_native.MESSAGE_FLAG_BYTES + made.nbytes, dtype=torch.uint8, device=halo.device)
        if not _native.send_halo_gradient(inputs, silu, buffer.data_ptr()):
            return False
        _native.receive(made, buffer.data_ptr())
        self.mailboxes.send(rank, made)
        return True


class Mailboxes:
    """What `_Ring` is, for ranks that are threads."""

    def __init__(self, rank, size, boxes, has_buffers=False):
        self.rank, self.size, self.boxes = rank, size, boxes
        self.previous = rank - 1 if rank > 0 else None
        self.next = rank + 1 if rank + 1 < size else None
        self.buffers = Buffers(self) if has_buffers else None

    def prepare(self, device, *tensors):
        pass

    def send(self, rank, *tensors):
        self.boxes[self.rank, rank].put([tensor.clone() for tensor in tensors])

    def receive(self, rank, *tensors):
        def received():
            sent = self.boxes[rank, self.rank].get(timeout=60)
            assert tensors == tuple((tuple(tensor.shape), tensor.dtype) for tensor in sent)
            return sent[0] if len(sent) == 1 else sent

        return received

    def lengths(self, x):
        for rank in range(self.size):
            self.boxes["lengths", rank].put((self.rank, x.shape[-1]))
        found = sorted(self.boxes["lengths", self.rank].get(timeout=60) for _ in range(self.size))
        return torch.cat([x.new_full((1,), length, dtype=torch.int64) for _, length in found])


def over_threads(monkeypatch, lengths, whole, work, has_buffers=False):
    """What `work` gives on each rank for its slice of the whole problem; ranks are threads. With buffers, kernels are used that only GPUs which
    see each other's memory use."""
    world, found, errors = len(lengths), {}, []
    boxes = {(sender, rank): queue.Queue() for sender in [*range(world), "lengths"] for rank in range(world)}
    rank_of_thread = threading.local()
    make_ring = lambda group: Mailboxes(rank_of_thread.value, world, boxes, has_buffers)  # noqa: E731
    monkeypatch.setattr(causeway.parallel, "_Ring", make_ring)

    def run_rank(rank):
        rank_of_thread.value = rank
        here = slice(sum(lengths[:rank]), sum(lengths[: rank + 1]))
        sliced = "x", "residual", "dy", "seq_idx"
        try:
            with torch.autograd.set_multithreading_enabled(False):
                found[rank] = work({name: t[..., here] if name in sliced else t for name, t in whole.items()})
        except Exception as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(found) == world
    return [found[rank] for rank in range(world)]


def laid_out(tensor, layout):
    if tensor.dim() < 3:
        return tensor.contiguous()
    return tensor.transpose(1, 2).contiguous().transpose(1, 2) if layout == "channel-last" else tensor.contiguous()


def require_equal(found, expected, **close):
    """y and final states with the bits of one call, and gradients close to its own."""
    y, final_states, gradients = expected
    assert torch.equal(torch.cat([part[0] for part in found], -1), y)
    if final_states is not None:
        torch.testing.assert_close(sum(part[1] for part in found), final_states, atol=0, rtol=0)
    for name, gradient in gradients.items():
        parts = [part[2][name].float() for part in found]
        joined = torch.cat(parts, -1) if name in ("x", "residual") else sum(parts)
        torch.testing.assert_close(joined, gradient.float(), msg=lambda m: f"{name}: {m}", **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["channel-first", "channel-last"])
@pytest.mark.parametrize("way", ["waits", "overlaps", "buffers"])
@pytest.mark.parametrize("kind", ["plain", "states", "some-indices", "sequences", "long-sequences", "cu_seqlens"])
def test_ranks_in_threads(device, dtype, layout, kind, way, monkeypatch):
    """Slices of a hundred positions and more on one device, in the layouts and dtypes that kernels are made for."""
    if way == "buffers" and device == "cpu":
        pytest.skip("only GPUs have buffers")
    monkeypatch.setattr(slices, "OVERLAP_BYTES", 2**62 if way == "waits" else 0)
    monkeypatch.syspath_prepend(WORKER.parent)
    from parallel_worker import call, make

    def converted(name, value):
        if not value.is_floating_point():
            return value.to(device)
        return laid_out(value.to(device, torch.float32 if name in ("weight", "bias") else dtype), layout)

    lengths = 160, 5, 131
    whole = {name: converted(name, value) for name, value in make(kind, sum(lengths)).items()}

    def work(part):
        part = {name: laid_out(value, layout) for name, value in part.items()}
        return call(causeway.parallel.causal_conv1d_fn, part, kind)

    found = over_threads(monkeypatch, lengths, whole, work, way == "buffers")
    close = dict(atol=2e-4, rtol=2e-4) if dtype == torch.float32 else dict(atol=5e-2, rtol=2e-2)
    require_equal(found, call(causeway.causal_conv1d_fn, dict(whole), kind), **close)


def draw_case(draw):
    """A problem of random sizes, cut into random slices: (lengths, tensors, leaves that require a gradient, options)."""
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    normal = lambda *sizes: torch.randn(sizes, generator=generator)  # noqa: E731
    lengths = [draw.choice([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 20, 33]) for _ in range(draw.choice([2, 2, 3, 4, 5]))]
    kind, total = draw.choice(["plain", "seq_idx", "cu_seqlens"]), sum(lengths)
    dim, width = draw.choice([1, 3, 8]), draw.choice([1, 2, 3, 4, 4, 7])
    batch = 1 if kind == "cu_seqlens" else draw.choice([1, 2])
    whole, rows = {"x": normal(batch, dim, total), "dy": normal(batch, dim, total), "weight": normal(dim, width)}, batch
    if draw.random() < 0.7:
        whole["bias"] = normal(dim)
    if draw.random() < 0.5:
        whole["residual"] = normal(batch, dim, total)
    if kind == "cu_seqlens":
        rows = draw.randint(1, 9)
        # Many of them are empty, or end where a slice does or a few positions behind.
        cuts = [sum(lengths[:rank]) for rank in range(len(lengths))]
        ends = [draw.choice([draw.randint(0, total), min(total, draw.choice(cuts) + draw.randint(0, 2))]) for _ in range(rows - 1)]
        whole["cu_seqlens"] = torch.tensor([0, *sorted(ends), total], dtype=draw.choice([torch.int32, torch.int64]))
    if kind == "seq_idx":
        # Padding and indices that come back, or sequences.
        low, high = draw.choice([(-3, 2), (0, 2)])
        indices = torch.randint(low, high, (batch, total), generator=generator, dtype=torch.int32)
        whole["seq_idx"] = indices if draw.random() < 0.5 else indices.clamp(min=0).cumsum(-1).int()
    if draw.random() < 0.5:
        whole["initial_states"] = normal(rows, dim, width - 1)
    whole["dfinal"] = normal(rows, dim, width - 1)
    leaves = [name for name in ("x", "weight", "bias", "residual", "initial_states") if name in whole and draw.random() < 0.75]
    options = dict(activation=draw.choice([None, "silu"]), return_final_states=draw.random() < 0.5)
    return lengths, whole, leaves, options


@pytest.mark.parametrize("seed", range(8))
def test_random_slices(device, seed, monkeypatch):
    """Slices and sequences of any length, empty ones and those over several ranks among them, with any of the gradients."""
    draw = random.Random(seed)
    for _ in range(60):
        monkeypatch.setattr(slices, "OVERLAP_BYTES", draw.choice([0, 2**62]))
        has_buffers = draw.random() < 0.5 and device != "cpu"
        lengths, whole, leaves, options = draw_case(draw)
        layout, checkpoints = draw.choice(["channel-first", "channel-last"]), draw.random() < 0.25

        def call(function, part):
            part = {name: laid_out(t, layout).clone() for name, t in part.items()}
            dy, dfinal = part.pop("dy"), part.pop("dfinal")
            for name in leaves:
                part[name].requires_grad_()
            found = checkpoint(function, use_reentrant=False, **part, **options) if checkpoints else function(**part, **options)
            y, final_states = found if options["return_final_states"] else (found, None)
            if leaves:
                loss = (y * dy).sum()
                (loss if final_states is None else loss + (final_states * dfinal).sum()).backward()
            return y, final_states, {name: part[name].grad for name in leaves}

        whole = {name: t.to(device) for name, t in whole.items()}
        work = lambda part: call(causeway.parallel.causal_conv1d_fn, part)  # noqa: E731
        found = over_threads(monkeypatch, lengths, whole, work, has_buffers)
        require_equal(found, call(causeway.causal_conv1d_fn, whole), atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["plain", "states", "seq_idx", "sequences", "long-sequences", "cu_seqlens"])
def test_the_host_waits_for_no_gpu(kind, monkeypatch):
    """Boundaries, indices and lengths stay on the GPU, so that the host goes on."""
    monkeypatch.syspath_prepend(WORKER.parent)
    from parallel_worker import call, make

    whole = {n: t.float().cuda() if t.is_floating_point() else t.cuda() for n, t in make(kind, 80).items()}
    for mode in ("default", "error"):
        torch.cuda.set_sync_debug_mode(mode)
        try:
            over_threads(monkeypatch, (40, 5, 35), whole, lambda part: call(causeway.parallel.causal_conv1d_fn, part, kind))
        finally:
            torch.cuda.set_sync_debug_mode("default")


WRONG = [
    (dict(bias=torch.zeros(4)), ValueError, "bias has dim 4: expected 3"),
    (dict(seq_idx=torch.zeros(2, 7, dtype=torch.int64)), TypeError, "seq_idx has dtype int64"),
    (dict(residual=torch.zeros(2, 3, 6)), ValueError, "residual has seqlen 6"),
    (dict(initial_states=torch.zeros(2, 3, 4)), ValueError, "initial_states has length 4"),
    (dict(initial_states=torch.zeros(7, 3, 3), cu_seqlens=torch.tensor([0, 14])), ValueError, "x has batch 2"),
    (dict(weight=None), TypeError, "weight is a NoneType"),
    (dict(x=torch.zeros(2, 3, 7).to_sparse()), RuntimeError, r"x has layout torch.sparse_coo: .*; pass x\.to_dense\(\)"),
    (dict(x=torch.zeros(2, 3, 7).to_sparse_csr()), RuntimeError, r"x has layout torch.sparse_csr: .*; pass x\.to_dense\(\)"),
    (dict(residual=torch.zeros(2, 3, 7).to_mkldnn()), RuntimeError, r"residual has layout torch._mkldnn: .*; pass residual\.to_dense"),
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
    words = r"group is None, and there is no default process group: call torch.distributed.init_process_group first, or pass group=$"
    with pytest.raises(ValueError, match=words):
        causeway.parallel.causal_conv1d_fn(x, weight)


def test_arrays_are_refused():
    words = r"^x is an ndarray: expected a torch.Tensor; pass torch.from_numpy\(x\)$"
    with pytest.raises(TypeError, match=words):
        causeway.parallel.causal_conv1d_fn(torch.zeros(2, 3, 7).numpy(), torch.zeros(3, 4).numpy())


def test_one_rank_is_an_ordinary_call(tmp_path):
    from causeway import parallel

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        x, weight = torch.randn(2, 3, 7), torch.randn(3, 4)
        assert torch.equal(parallel.causal_conv1d_fn(x, weight), causeway.causal_conv1d_fn(x, weight))
    finally:
        dist.destroy_process_group()


def test_indices_that_change_between_the_passes_are_refused():
    x, seq_idx = torch.zeros(1, 2, 8), torch.zeros(1, 8, dtype=torch.int32)
    part = slices.Indexed(types.SimpleNamespace(previous=None, next=None, buffers=None), x, 3, seq_idx, False)
    seq_idx[0, 0] = 1
    with pytest.raises(RuntimeError, match="seq_idx has been changed in place"):
        part.backward(None, x, None, None, None, x, None, True)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("boundaries", [[0], [0, 5], [0, 9, 8, 12], [1, 12], [0, 13]])
def test_boundaries_are_checked(width, boundaries, monkeypatch):
    whole = dict(x=torch.zeros(1, 3, 12), weight=torch.zeros(3, width), cu_seqlens=torch.tensor(boundaries))

    def work(part):
        words = f"cu_seqlens is {boundaries}: expected boundaries that rise from 0 to 12, all slices together"
        with pytest.raises(ValueError, match=re.escape(words)):
            causeway.parallel.causal_conv1d_fn(**part)
        return True

    assert over_threads(monkeypatch, (7, 0, 5), whole, work) == [True] * 3


def test_states_of_no_column_have_a_gradient(monkeypatch):
    """And boundaries of another length than x, whose sequences are on several ranks."""
    whole = dict(x=torch.randn(1, 3, 12), weight=torch.randn(3, 1), cu_seqlens=torch.tensor([0, 2, 9, 12]), initial_states=torch.zeros(3, 3, 0))

    def work(part):
        leaves = [part[name].clone().requires_grad_() for name in ("x", "initial_states")]
        x, states = leaves
        y, final = causeway.parallel.causal_conv1d_fn(x, part["weight"], None, None, states, True, cu_seqlens=part["cu_seqlens"])
        assert final.shape == (3, 3, 0)
        y.sum().backward()
        assert torch.equal(x.grad, part["weight"].expand_as(x)) and states.grad.shape == states.shape
        return y.detach()

    found = over_threads(monkeypatch, (7, 5), whole, work)
    assert torch.equal(torch.cat(found, -1), causeway.causal_conv1d_fn(whole["x"], whole["weight"]))


def test_indices_of_width_1_that_change_between_the_passes_are_refused():
    x, seq_idx = torch.zeros(1, 2, 8), torch.zeros(1, 8, dtype=torch.int32)
    part = slices.Alone(x, seq_idx, None)
    seq_idx[0, 0] = -1
    with pytest.raises(RuntimeError, match="seq_idx has been changed in place"):
        part.backward(None, x, None, None, None, x, None, True)


def test_boundaries_that_change_between_the_passes_are_refused():
    x, boundaries = torch.zeros(1, 2, 8), torch.tensor([0, 5, 16])
    part = slices.Sequences(types.SimpleNamespace(previous=None, next=1, buffers=None), x, 3, boundaries)
    boundaries[1] = 6
    with pytest.raises(RuntimeError, match="cu_seqlens has been changed in place"):
        part.backward(None, x, None, None, None, x, None, True)


@pytest.mark.parametrize("width", [1, 4])
def test_second_derivatives_are_refused_in_words(width, monkeypatch):
    """In the name of this call, which is not the one of `causeway`."""
    whole = dict(x=torch.randn(2, 3, 12), weight=torch.randn(3, width), initial_states=torch.randn(2, 3, width - 1))

    def work(part):
        leaves = [tensor.clone().requires_grad_() for tensor in part.values()]
        y = causeway.parallel.causal_conv1d_fn(*leaves[:2], initial_states=leaves[2], activation="silu")
        found = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        with pytest.raises(NotImplementedError, match=r"^causeway\.parallel\.causal_conv1d_fn cannot be differentiated twice"):
            found[1].sum().backward()
        return [tensor.detach() for tensor in found]

    found = over_threads(monkeypatch, (7, 5), whole, work)
    leaves = [tensor.requires_grad_() for tensor in whole.values()]
    y = causeway.causal_conv1d_fn(*leaves[:2], initial_states=leaves[2], activation="silu")
    dx, dweight, dstates = torch.autograd.grad(y.square().sum(), leaves)
    torch.testing.assert_close(torch.cat([part[0] for part in found], -1), dx)
    torch.testing.assert_close(found[0][1] + found[1][1], dweight)
    torch.testing.assert_close(found[0][2] + found[1][2], dstates)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ([[1, 1, 1], [2, 2, 1]], "several machines"),
        ([[1, 1, 1], [1, 1, 1]], "share a GPU"),
        ([[1, 1, 1], [1, 2, 0]], "CAUSEWAY_PEER_MEMORY"),
    ],
)
def test_a_rank_says_why_its_messages_go_through_the_group(facts, reason, monkeypatch, caplog):
    from causeway._torch import peer_memory

    group = types.SimpleNamespace(rank=lambda: 0, size=lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(uuid="a GPU"))
    monkeypatch.setattr(peer_memory, "_gather", lambda *_: facts)
    with caplog.at_level("INFO", logger="causeway.parallel"):
        assert peer_memory._make(group, torch.device("cuda"), 1024) is None
    assert "rank 0 of 2" in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize("value, is_told", [("off", True), ("01", True), ("", False), ("0", False), ("1", False)])
def test_a_wrong_value_of_the_environment_is_told(value, is_told, monkeypatch, caplog):
    from causeway._torch import peer_memory

    monkeypatch.setenv("CAUSEWAY_PEER_MEMORY", value)
    found = peer_memory._symmetric_memory()
    assert value != "0" or found is None
    assert (f"CAUSEWAY_PEER_MEMORY is '{value}': expected 0 or 1; taken as 1" in caplog.text) == is_told
