"""Times PyTorch's own causal depthwise conv1d on this CPU, for comparison with a run of `causeway bench --save`.

    python docs/performance/torch_cpu.py causeway-run.json --save torch.json

Every row of the run is repeated with torch.nn.functional.conv1d (groups = dim, left padding cut off) and silu, on
tensors of the same shape, dtype and memory layout, with as many threads. PyTorch's forward + backward is compared
with Causeway's forward plus its backward.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def median_seconds(call, seconds=2.0):
    """Median time of a call, once it has run."""
    call()
    samples, start = [], time.perf_counter()
    while len(samples) < 3 or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        call()
        samples.append(time.perf_counter() - before)
    return statistics.median(samples)


def measure(row):
    """Seconds of forward, and of forward and backward."""
    batch, dim, seqlen = row["shape"]
    dtype = DTYPES[row["dtype"]]
    if row["layout"] == "channel-last":
        x = torch.randn(batch, seqlen, dim, dtype=dtype).transpose(1, 2)
    else:
        x = torch.randn(batch, dim, seqlen, dtype=dtype)
    weight = torch.randn(dim, 1, row["width"], dtype=DTYPES[row["weight_dtype"]]).to(dtype)
    bias, dy = torch.randn(dim, dtype=dtype), torch.randn_like(x)

    def forward():
        y = F.conv1d(x, weight, bias, padding=row["width"] - 1, groups=dim)[..., :seqlen]
        return F.silu(y) if row["activation"] == "silu" else y

    def both():
        for tensor in (x, weight, bias):
            tensor.grad = None
        forward().backward(dy)

    with torch.no_grad():
        alone = median_seconds(forward)
    for tensor in (x, weight, bias):
        tensor.requires_grad_()
    return alone, median_seconds(both)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="a run that `causeway bench --save` wrote on this machine")
    parser.add_argument("--save", help="write the figures as JSON")
    arguments = parser.parse_args()
    with open(arguments.run) as file:
        run = json.load(file)
    torch.set_num_threads(run["threads"])
    rows = []
    for forward in (row for row in run["rows"] if row["call"] == "forward"):
        backward = next(r for r in run["rows"] if r["case"] == forward["case"] and r["call"] == "backward")
        ours = forward["time"]["median"], forward["time"]["median"] + backward["time"]["median"]
        theirs = measure(forward)
        rows.append({"case": forward["case"], "torch_forward": theirs[0], "torch_forward_backward": theirs[1],
                     "causeway_forward": ours[0], "causeway_forward_backward": ours[1]})
        print(f"{forward['case']:44} forward {theirs[0] * 1e3:8.1f} ms, {theirs[0] / ours[0]:5.1f} ×   "
              f"forward + backward {theirs[1] * 1e3:8.1f} ms, {theirs[1] / ours[1]:5.1f} ×", flush=True)
    if arguments.save:
        facts = {"torch": torch.__version__, "threads": run["threads"], "processor": run["host"]["processor"],
                 "compared_with": arguments.run, "rows": rows}
        with open(arguments.save, "w") as file:
            json.dump(facts, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
