"""What a convolution of a sequence over several GPUs takes beside each rank's slice alone, forward and backward.

    python python/benchmarks/parallel.py [--ranks 2] [--json FILE]

Every rank times both in turns, with events on its stream; a figure is the median over the steps, of the slowest rank.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import causeway
import torch
import torch.distributed as dist
from causeway import parallel

# batch, dim, seqlen of a rank; kind
SHAPES = [(1, 8192, length) for length in (1024, 4096, 16384, 65536)]
KINDS = ["plain", "channel-last", "seq_idx", "cu_seqlens"]


def make(rank, world, shape, kind):
    """The arguments of both calls."""
    batch, dim, seqlen = shape
    generator = torch.Generator("cuda").manual_seed(rank)
    draw = lambda *sizes: torch.randn(sizes, generator=generator, device="cuda").bfloat16()  # noqa: E731
    x, dy = draw(batch, dim, seqlen), draw(batch, dim, seqlen)
    if kind == "channel-last":
        x, dy = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (x, dy))
    inputs = {"x": x.requires_grad_(), "weight": draw(dim, 4).requires_grad_(), "bias": draw(dim).requires_grad_()}
    alone, together = {}, {}
    if kind == "seq_idx":
        alone["seq_idx"] = together["seq_idx"] = (torch.arange(seqlen, device="cuda") // 1000).int()[None]
    if kind == "cu_seqlens":
        ends = [0, seqlen // 3, seqlen]
        alone["cu_seqlens"] = torch.tensor(ends, device="cuda")
        # A sequence goes on from rank to rank.
        starts = [at * seqlen + seqlen // 3 for at in range(world)]
        together["cu_seqlens"] = torch.tensor([0, *starts, world * seqlen], device="cuda")
    return inputs, dy, alone, together


def time_steps(step, leaves, steps):
    """Microseconds of each step."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(steps)]
    for start, end in events:
        for leaf in leaves:
            leaf.grad = None
        start.record()
        step()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1000 for start, end in events]


def work(rank, world, rendezvous, path):
    """One rank."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=rendezvous, rank=rank, world_size=world, device_id=torch.device("cuda", rank))
    rows = []
    for shape in SHAPES:
        for kind in KINDS:
            inputs, dy, alone, together = make(rank, world, shape, kind)
            leaves = list(inputs.values())
            steps = {
                "alone": lambda: causeway.causal_conv1d_fn(**inputs, activation="silu", **alone).backward(dy),
                "over ranks": lambda: parallel.causal_conv1d_fn(**inputs, activation="silu", **together).backward(dy),
            }
            found = {name: [] for name in steps}
            for turn in range(4):
                for name, step in steps.items():
                    dist.barrier()
                    times = time_steps(step, leaves, 20)
                    if turn:
                        found[name] += times
            mine = torch.tensor([statistics.median(times) for times in found.values()], device="cuda")
            dist.all_reduce(mine, dist.ReduceOp.MAX)
            single, over = mine.tolist()
            rows.append({"shape": shape, "kind": kind, "alone_us": single, "over_ranks_us": over})
            if rank == 0:
                print(f"{shape} {kind}: {single:.1f} us alone, {over:.1f} over {world} ranks, {over / single:.2f} x", flush=True)
    if rank == 0 and path:
        about = {"device": torch.cuda.get_device_name(), "ranks": world, "torch": torch.__version__, "rows": rows}
        pathlib.Path(path).write_text(json.dumps(about, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2, help="GPUs")
    parser.add_argument("--json", help="file to save the figures to")
    options = parser.parse_args()
    if torch.cuda.device_count() < options.ranks:
        sys.exit(f"error: PyTorch sees {torch.cuda.device_count()} GPUs: expected {options.ranks}")
    with tempfile.TemporaryDirectory() as directory:
        arguments = options.ranks, f"file://{directory}/rendezvous", options.json
        torch.multiprocessing.spawn(work, arguments, options.ranks)
