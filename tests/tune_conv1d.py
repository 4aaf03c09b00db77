#!/usr/bin/env python3
"""Measures ways to cut small and ragged channel-first backward calls, and checks or fits the model by which the planner takes one.

    tune_conv1d.py measure FOLDER [--seed N] [--count N]     on the GPU; runs `causeway bench`, and keeps its files in FOLDER
    tune_conv1d.py check FOLDER...                           what the model's choices take beyond the best that was measured
    tune_conv1d.py fit FOLDER...                             prints fitted constants for backward/short_first.rs

A measurement is of one drawn call and one cut. `CAUSEWAY_PLAN_RANK` has the planner take the second best cut by its model, the third
best, and so on, until there are no more; what they were is read from the launches in the file of each run. `MODEL` and
`nanoseconds` are those of crates/causeway/src/backend/gpu/causal_conv1d/backward/short_first.rs. Calls that another kernel takes are
left out.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from draw_shapes import log_uniform  # noqa: E402

MULTIPROCESSORS, WAVE, ROWS_BLOCK = 132, 32, 256
MODEL = dict(
    start=590, start_of_rows=995, latency=530, step=42, ragged_step=60, step_of_rows=34, ragged_step_of_rows=48, shared=1530, sharer=18
)
SHORT, ROWS = "causal_conv1d_backward_short_first", "causal_conv1d_backward_rows_first"


def ceil(a, b):
    return -(-a // b)


# ---- measuring -----------------------------------------------------------------------------------------------------


def call(draw):
    """One row of a suite: x of 0.15 to 60 million elements."""
    while True:
        dim, seqlen = log_uniform(draw, 64, 8192, 1), log_uniform(draw, 16, 4096, draw.choice([1, 8]))
        batch = round(math.exp(draw.uniform(math.log(1.5e5), math.log(6e7))) / (dim * seqlen))
        if 1 <= batch <= 4096:
            return {
                "dtype": draw.choice(["bf16", "bf16", "bf16", "f32"]),
                "shape": [batch, dim, seqlen],
                "layout": "channel-first",
                "width": draw.choice([2, 3, 4, 4]),
                "activation": draw.choice(["silu", "silu", "silu", "none"]),
                "bias": True,
            }


def measure(options):
    (folder,) = options.folders
    os.makedirs(folder, exist_ok=True)
    suite, draw = os.path.join(folder, "suite.toml"), random.Random(options.seed)
    with open(suite, "w") as file:
        print(f'name = "tune-{options.seed}"\nabout = "Calls drawn with seed {options.seed}"', file=file)
        for at in range(options.count):
            print(f'\n[[conv1d]]\nname = "drawn-{at}"', file=file)
            for key, value in call(draw).items():
                print(f"{key} = {json.dumps(value)}", file=file)

    def bench(rank, seconds, *more):
        environment = os.environ | {"CAUSEWAY_PLAN_RANK": str(rank)}
        command = [options.causeway, "bench", "--suite", suite, "--call", "backward", "--device", "cuda", "--seconds", str(seconds)]
        subprocess.run([*command, *more], check=True, env=environment, stdout=subprocess.DEVNULL)

    # Compiles side by side, then measures one after the other.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(lambda rank: bench(rank, 0.001), range(options.ranks)))
    for rank in range(options.ranks):
        bench(rank, options.seconds, "--save", os.path.join(folder, f"rank-{rank}.json"))
        print(f"rank {rank} of {options.ranks} is measured", file=sys.stderr)


# ---- the model -----------------------------------------------------------------------------------------------------


def cut_of(row):
    """Of a row of a run: rows side by side or not, threads of a channel, channels of a block, and blocks of a group; None for other kernels."""
    launch, (_, dim, _) = row["launches"][0], row["shape"]
    threads, blocks = launch["block"][0], launch["grid"][0]
    if launch["entry"] == ROWS:
        channels = ROWS_BLOCK // WAVE * (WAVE - (row["width"] > 1)) // packets(row)
        return True, 0, channels, blocks // ceil(dim, channels)
    if launch["entry"] != SHORT:
        return None
    sums = 4 * (row["width"] + 1)
    for own, channels in ([(32, 2), (64, 1)] if threads == 64 else [(threads, 1)]):
        groups = ceil(dim, channels)
        parts = blocks // groups
        if blocks == groups * parts and launch["workspace_bytes"] == (blocks * channels * sums if parts > 1 else 0):
            return False, own, channels, parts
    raise ValueError(f"{row['case']}: a launch that no cut explains: {launch}")


def packets(row):
    """Of 16 bytes, that a row touches wherever it begins, which is at a multiple of the power of two in its length."""
    size, (batch, dim, seqlen) = (4 if row["dtype"] == "f32" else 2), row["shape"]
    power = math.gcd(16, seqlen * size) if batch * dim > 1 else 16
    return ceil(seqlen * size + 16 - power, 16)


def nanoseconds(row, cut, m):
    """What a cut takes by the model."""
    batch, dim, seqlen = row["shape"]
    side_by_side, own, channels, parts = cut
    slow = row["dtype"] != "f32" and seqlen % 8 != 0 and row["activation"] == "silu"
    if side_by_side:
        steps = ceil(batch, parts)
        start, step, resident, waves = m["start_of_rows"], m["ragged_step_of_rows" if slow else "step_of_rows"], 4, ROWS_BLOCK // WAVE * steps
    else:
        units = batch * packets(row)
        steps, waves = ceil(units, own * parts), channels * ceil(ceil(units, parts), WAVE)
        start, step, resident = m["start"], m["ragged_step" if slow else "step"], min(1024 // (own * channels), 16)

    def round_of(blocks):
        work, waits = blocks * waves * step, steps * m["latency"]
        return start + max(work, waits) + 0.75 * min(work, waits)

    full, rest = divmod(ceil(dim, channels) * parts, MULTIPROCESSORS * resident)
    last = round_of(ceil(rest, MULTIPROCESSORS)) if rest else 0
    return full * round_of(resident) + last + (m["shared"] + m["sharer"] * parts if parts > 1 else 0)


def measured(folders):
    """Of each call: its row, and the seconds of each cut."""
    calls = {}
    for folder in folders:
        for name in sorted(os.listdir(folder)):
            if name.startswith("rank-"):
                with open(os.path.join(folder, name)) as file:
                    rows = json.load(file)["rows"]
                for row in rows:
                    if row["wrong"]:
                        raise ValueError(f"{name}, {row['case']}: {row['wrong']}")
                    if cut := cut_of(row):
                        times = calls.setdefault((folder, row["case"]), (row, {}))[1]
                        times.setdefault(cut, row["time"]["median"])
    return [(row, times) for row, times in calls.values() if len(times) > 1]


def beyond(row, times, m):
    """The time of the model's choice by the best one."""
    return times[min(times, key=lambda cut: nanoseconds(row, cut, m))] / min(times.values())


def check(options):
    calls = measured(options.folders)
    ratios = sorted(((beyond(row, times, MODEL), row, times) for row, times in calls), key=lambda found: -found[0])
    for ratio, row, times in ratios[:10]:
        best = min(times, key=times.get)
        print(f"{ratio:.2f}  {row['case']} {row['shape']} {row['dtype']} width {row['width']}: best {best}, {times[best] * 1e6:.2f} µs")
    mean = statistics.geometric_mean(ratio for ratio, *_ in ratios)
    print(f"{sum(len(times) for _, times in calls)} cuts of {len(calls)} calls: the model's choices take {mean:.3f} of the best times")


def fit(options):
    calls = measured(options.folders)

    def loss(m):
        errors = [
            math.log((nanoseconds(row, cut, m) + m["launch"]) * 1e-9 / time) ** 2
            for row, times in calls
            for cut, time in times.items()
            if time < 1.4 * min(times.values())
        ]
        chosen = statistics.fmean(math.log(beyond(row, times, m)) for row, times in calls)
        return 0.5 * math.sqrt(statistics.fmean(errors)) + chosen

    # `launch` is what all calls have in common: it matters to errors, and not to choices.
    draw, best = random.Random(1), MODEL | {"launch": 1500}
    least = loss(best)
    for _ in range(options.turns):
        other = dict(best)
        for name in draw.sample(list(other), draw.choice([1, 1, 2])):
            other[name] *= math.exp(draw.gauss(0, 0.12))
        if (then := loss(other)) < least:
            least, best = then, other
    for name, value in best.items():
        print(f"{name}: {value:.0f}")
    mean = statistics.geometric_mean(beyond(row, times, best) for row, times in calls)
    print(f"with these the choices of the same {len(calls)} calls take {mean:.3f} of the best times")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("action", choices=["measure", "check", "fit"], help="measure cuts on a GPU; check the model's choices; fit the model")
    parser.add_argument("folders", nargs="+", help="where measurements go (one folder), or come from")
    parser.add_argument("--causeway", default="causeway", help="the command that measures")
    parser.add_argument("--seed", type=int, default=1, help="of the calls that are drawn")
    parser.add_argument("--count", type=int, default=60, help="calls to draw")
    parser.add_argument("--ranks", type=int, default=10, help="cuts of each call that are measured, the best by the model first")
    parser.add_argument("--seconds", type=float, default=0.02, help="of each call")
    parser.add_argument("--turns", type=int, default=3000, help="changes of the constants that a fit tries")
    options = parser.parse_args()
    {"measure": measure, "check": check, "fit": fit}[options.action](options)


if __name__ == "__main__":
    main()
