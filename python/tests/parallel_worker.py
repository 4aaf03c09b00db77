"""One rank of test_parallel.py: compares the convolution over all ranks with one process's own.

python parallel_worker.py RANK RANKS RENDEZVOUS-FILE gloo|nccl
"""

import os
import pathlib
import sys
from itertools import product

import causeway
import torch
import torch.distributed as dist
from causeway import parallel
from causeway._torch import peer_memory, ring, slices

DIM, WIDTH = 5, 4
# (lengths of the slices, one per rank)
SLICES = [(9, 9), (0, 9), (0, 0, 5), (0, 4, 0), (3, 12), (12, 1), (16, 7), (1, 1, 7), (9, 20, 8), (6, 2, 5, 5), (2, 1, 1, 9), (10, 6, 6, 7), (5, 0, 4)]
KINDS = ["plain", "states", "seq_idx", "some-indices", "indices-and-states", "cu_seqlens", "sequences", "long-sequences", "no-gradient"]


def make(kind, total):
    """The whole problem, the same on every rank."""
    generator = torch.Generator().manual_seed(total)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    batch = 1 if kind in ("cu_seqlens", "sequences", "long-sequences") else 2
    t = {"x": draw(batch, DIM, total), "weight": draw(DIM, WIDTH), "bias": draw(DIM)}
    t["residual"], t["dy"] = draw(batch, DIM, total), draw(batch, DIM, total)
    if kind in ("states", "indices-and-states"):
        t["initial_states"], t["dfinal"] = draw(batch, DIM, WIDTH - 1), draw(batch, DIM, WIDTH - 1)
    if kind == "seq_idx":
        row = (torch.arange(total) // 4).int()
        row[total // 2] = -1
        t["seq_idx"] = torch.stack([row, row.flip(0)])
    if kind in ("some-indices", "indices-and-states"):
        # An index may come back behind another one.
        t["seq_idx"] = torch.randint(-1, 2, (batch, total), generator=generator, dtype=torch.int32)
    if kind == "long-sequences":
        t["cu_seqlens"] = torch.tensor([0, total // 2, total])
        t["dfinal"] = draw(2, DIM, WIDTH - 1)
    if kind in ("cu_seqlens", "sequences"):
        t["cu_seqlens"] = torch.tensor([0, 2, 2, 3, total // 2 + 1, total - 1, total])
    if kind == "cu_seqlens":
        t["initial_states"], t["dfinal"] = draw(6, DIM, WIDTH - 1), draw(6, DIM, WIDTH - 1)
    return t


LEAVES = ("x", "weight", "bias", "residual", "initial_states")


def call(function, t, kind):
    """y, final states if the kind has them, and the gradients of everything."""
    leaves = [name for name in LEAVES if name in t]
    for name in leaves:
        t[name] = t[name].clone().requires_grad_()
    wants_final = kind != "sequences"
    found = function(
        t["x"],
        t["weight"],
        t["bias"],
        t.get("seq_idx"),
        t.get("initial_states"),
        wants_final,
        activation="silu",
        residual=t["residual"],
        cu_seqlens=t.get("cu_seqlens"),
    )
    y, final_states = found if wants_final else (found, None)
    dy, dfinal = t["dy"], t.get("dfinal")
    if kind in ("plain", "states") and dy.dtype != torch.bfloat16:
        # As of the imaginary part of a conjugate: PyTorch negates the values only where they are read.
        dy, dfinal = (None if d is None else torch.complex(d, -d).conj().imag for d in (dy, dfinal))
    # Zeros of a rank without the end of a row have no graph.
    results = [(y, dy), (final_states, dfinal)] if dfinal is not None and final_states.requires_grad else [(y, dy)]
    # All of them on every rank: a sum over the ranks, as of DDP, waits for each.
    torch.autograd.backward(*zip(*results))
    missing = [name for name in leaves if t[name].grad is None]
    assert not missing, f"no gradient of {missing}"
    return y, final_states, {name: t[name].grad for name in leaves}


def work(rank, world, address, backend):
    """All cases of one number of ranks."""
    dist.init_process_group(backend, init_method=address, rank=rank, world_size=world)
    torch.set_num_threads(1)
    device = "cpu" if backend == "gloo" else f"cuda:{rank}"
    if backend == "nccl":
        torch.cuda.set_device(device)

    # Slices that wait for their halo, and slices that compute while it travels.
    for slices.OVERLAP_BYTES, lengths in product((0, 2**62), [s for s in SLICES if len(s) == world]):
        for kind in KINDS:
            start, total = sum(lengths[:rank]), sum(lengths)
            here = slice(start, start + lengths[rank])
            whole = make(kind, total)
            if backend == "nccl":
                whole = {
                    n: v.to(device).float() if v.is_floating_point() else v.to(device)
                    for n, v in whole.items()
                }
            part = {
                name: value[..., here].contiguous() if name in ("x", "residual", "dy", "seq_idx") else value
                for name, value in whole.items()
            }
            if kind == "no-gradient":
                with torch.no_grad():
                    y = parallel.causal_conv1d_fn(part["x"], part["weight"])
                    expected = causeway.causal_conv1d_fn(whole["x"], whole["weight"])
                torch.testing.assert_close(y, expected[..., here])
                continue
            y, final_states, gradients = call(parallel.causal_conv1d_fn, part, kind)
            expected, expected_states, expected_gradients = call(causeway.causal_conv1d_fn, whole, kind)
            message = lambda m: f"{lengths} {kind} rank {rank}: {m}"  # noqa: E731
            close = dict(atol=1e-5, rtol=1e-4) if backend == "nccl" else {}
            assert torch.equal(y, expected[..., here]), message("other bits of y")
            sums = [g for name, g in gradients.items() if name not in ("x", "residual")]
            if final_states is not None:
                sums.append(final_states.detach())
            for tensor in sums:
                dist.all_reduce(tensor)
            if final_states is not None:
                torch.testing.assert_close(sums[-1], expected_states.detach(), msg=message, **close)
            for name, truth in expected_gradients.items():
                truth = truth[..., here] if name in ("x", "residual") else truth
                torch.testing.assert_close(
                    gradients[name], truth, msg=lambda m: message(f"{name}: {m}"), **close
                )
    if backend == "nccl":
        used = [buffers is not None for _, buffers in peer_memory._known.values()]
        assert used == [os.environ["CAUSEWAY_PEER_MEMORY"] == "1"], "another way of messages than was asked for"
    kept = [len(messages) for messages in ring._pending.values()]
    assert all(count <= ring._MOST_PENDING for count in kept), f"messages are kept after they have left: {kept}"
    dist.barrier()
    dist.destroy_process_group()


def name_of_thread(task):
    """Its name, on Linux; none of one that has ended meanwhile."""
    try:
        return (task / "comm").read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]), f"file://{sys.argv[3]}", sys.argv[4])
    # A thread of gloo's that runs while the interpreter ends can end the process with an error.
    names = map(name_of_thread, pathlib.Path("/proc/self/task").glob("*"))
    left = [name for name in names if "gloo" in name]
    assert not left, f"the group has been destroyed, and these threads run on: {left}"
