"""Trains a small language model twice, with Causeway's convolution and with plain PyTorch's, and compares the two.

    python train_tiny_mamba.py [--device cuda] [--steps 120] [--plot loss.svg]

The model predicts the next byte of a text, by default of this project's own documentation. Its blocks are those of gated
short-convolution models: two projections, with a causal convolution of width 4 and a gate between them. There is no
attention and no state space: the convolution is all that looks back, three bytes further with every block.

Both runs start from the same weights and see the same bytes. Their losses must stay together: the two convolutions are
the same function up to rounding.
"""

import argparse
import os
import pathlib
import sys
import time

import torch
import torch.nn.functional as F
from causeway.nn import CausalConv1d

VOCABULARY = 256


class PlainConv1d(CausalConv1d):
    """The same convolution from PyTorch's own operations."""

    def forward(self, x):
        y = F.conv1d(x, self.weight, self.bias, padding=self.kernel_size[0] - 1, groups=self.groups)
        return F.silu(y[..., : x.shape[-1]])


class Block(torch.nn.Module):
    """x + out(gate * conv(in(norm(x))))."""

    def __init__(self, dim, convolution):
        super().__init__()
        self.norm = torch.nn.LayerNorm(dim)
        self.project = torch.nn.Linear(dim, 4 * dim)
        self.conv = convolution(2 * dim, 4, activation="silu")
        self.out = torch.nn.Linear(2 * dim, dim)

    def forward(self, x):
        """(batch, seqlen, dim) to the same."""
        inner, gate = self.project(self.norm(x)).chunk(2, dim=-1)
        # The convolution takes the transposed view as it is: channel-last memory, no copy.
        mixed = self.conv(inner.transpose(1, 2)).transpose(1, 2)
        return x + self.out(mixed * torch.sigmoid(gate))


class LanguageModel(torch.nn.Module):
    """Bytes to the logits of the next byte."""

    def __init__(self, dim, blocks):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, dim)
        self.blocks = torch.nn.ModuleList(blocks)
        self.norm = torch.nn.LayerNorm(dim)
        self.head = torch.nn.Linear(dim, VOCABULARY)

    def forward(self, tokens):
        """(batch, seqlen) to (batch, seqlen, 256)."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def read_text(path):
    """The bytes of a file, or of this project's documentation."""
    if path is not None:
        return path.read_bytes()
    examples = pathlib.Path(__file__).resolve().parent
    root = examples.parent.parent
    if examples.parts[-2:] != ("python", "examples") or not (root / "README.md").is_file():
        sys.exit(
            "error: the text to train on is missing: it is the project's documentation, and "
            f"{examples} is not in the project; name a file with --text"
        )
    pages = [root / "README.md", *sorted(root.glob("docs/**/*.md"))]
    return b"\n".join(page.read_bytes() for page in pages)


def show_progress(name, step, steps, loss, seconds):
    """One line that is written over, on a terminal."""
    if sys.stderr.isatty():
        done = 30 * step // steps
        bar = "#" * done + "." * (30 - done)
        print(
            f"\r{name:<10} [{bar}] {step}/{steps}  loss {loss:.3f}  {seconds:.0f} s", end="", file=sys.stderr
        )
        if step == steps:
            print(file=sys.stderr)


def train(name, block, data, options):
    """(losses, milliseconds of each step) of one run; `block` makes a block from a number of channels."""
    torch.manual_seed(0)
    blocks = [block(options.dim) for _ in range(options.depth)]
    model = LanguageModel(options.dim, blocks).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    losses, times, start = [], [], time.perf_counter()
    for step in range(1, options.steps + 1):
        at = torch.randint(len(data) - options.seqlen - 1, (options.batch,), generator=generator)
        window = data[at[:, None] + torch.arange(options.seqlen + 1)].to(options.device)
        clock = time.perf_counter()
        logits = model(window[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Reading the loss waits for the device, so the clock has seen the whole step.
        losses.append(loss.item())
        times.append((time.perf_counter() - clock) * 1e3)
        show_progress(name, step, options.steps, losses[-1], time.perf_counter() - start)
    return losses, times


def plot(runs, path):
    """Losses and times of two runs as an SVG: the losses, their difference under them, and the times of steps."""
    width, height, left, gap = 760, 300, 64, 40
    losses = [losses for losses, _ in runs.values()]
    times = [times for _, times in runs.values()]
    # The first step of a run compiles kernels, and others wait for whatever else a machine does.
    longest = 2 * max(sorted(found)[len(found) // 2] for found in times)
    times = [[min(time, longest) for time in found] for found in times]
    steps = len(losses[0])
    low, high = min(map(min, losses)), max(map(max, losses))
    differences = [abs(a - b) for a, b in zip(*losses)]
    most = max(*differences, 1e-12)

    def line(values, bottom, top, lowest, highest, style):
        scale = (bottom - top) / (highest - lowest or 1)
        points = " ".join(
            f"{left + i * (width - left - 20) / max(steps - 1, 1):.1f},{bottom - (v - lowest) * scale:.1f}"
            for i, v in enumerate(values)
        )
        return f'<polyline fill="none" points="{points}" {style}/>'

    text = lambda x, y, words, more="": f'<text x="{x}" y="{y}" {more}>{words}</text>'  # noqa: E731
    styles = ['stroke="#1f6feb" stroke-width="4" opacity="0.45"', 'stroke="#d1242f" stroke-width="1.2"']
    floor = height + gap + 90
    ground = floor + gap + 110
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {ground + 40}" font-family="sans-serif" '
        'font-size="13"><rect width="100%" height="100%" fill="white"/>',
        text(left, 24, "Loss per byte (nats)", 'font-weight="bold"'),
        text(left - 8, 44, f"{high:.2f}", 'text-anchor="end"'),
        text(left - 8, height, f"{low:.2f}", 'text-anchor="end"'),
        *(line(values, height, 40, low, high, style) for values, style in zip(losses, styles)),
        text(left, height + gap, "Difference of the two", 'font-weight="bold"'),
        text(left - 8, height + gap + 22, f"{most:.0e}", 'text-anchor="end"'),
        text(left - 8, floor, "0", 'text-anchor="end"'),
        line(differences, floor, height + gap + 14, 0, most, 'stroke="#57606a"'),
        text(left, floor + gap, "Milliseconds per step", 'font-weight="bold"'),
        text(left - 8, floor + gap + 22, f"{longest:.0f}", 'text-anchor="end"'),
        text(left - 8, ground, "0", 'text-anchor="end"'),
        *(line(found, ground, floor + gap + 14, 0, longest, style) for found, style in zip(times, styles)),
        text(left, ground + 24, "step 1"),
        text(width - 20, ground + 24, f"step {steps}", 'text-anchor="end"'),
    ]
    for i, (name, style) in enumerate(zip(runs, styles)):
        y = 60 + 22 * i
        parts.append(f'<line x1="{width - 210}" x2="{width - 170}" y1="{y}" y2="{y}" {style}/>')
        parts.append(text(width - 160, y + 4, name))
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def count(text):
    """An int of the command line, 1 or more."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected an int, 1 or more")
    return number


def read_options(description):
    """The options and the text of the command line; it ends with an error before anything is trained if one of them is wrong."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--text", type=pathlib.Path, help="file to train on")
    parser.add_argument("--plot", type=pathlib.Path, default=pathlib.Path("loss.svg"))
    for name, value in dict(steps=120, batch=8, seqlen=128, dim=96, depth=4).items():
        parser.add_argument(f"--{name}", type=count, default=value)
    options = parser.parse_args()
    try:
        torch.empty(0, device=options.device)
    except (AssertionError, RuntimeError) as error:
        parser.error(f"--device is {options.device}: {str(error).splitlines()[0]}")
    if options.plot.is_dir() or not os.access(options.plot.parent, os.W_OK):
        parser.error(f"--plot is {options.plot}: expected a file in a folder that exists and can be written to")
    try:
        text = read_text(options.text)
    except OSError as error:
        parser.error(f"--text is {options.text}: {error.strerror}")
    # As `train` draws windows.
    longest = len(text) - 2
    if longest < 1:
        parser.error(f"--text is {options.text}, of {len(text)} bytes: expected 3 bytes or more")
    if options.seqlen > longest:
        parser.error(f"--seqlen is {options.seqlen}: expected {longest} or less, since the text has {len(text)} bytes")
    return options, text


def compare(description, blocks):
    """Trains with each of two kinds of block, prints a table and writes the plot."""
    options, text = read_options(description)
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    print(f"{len(data)} bytes of text, {options.steps} steps on {options.device}")
    runs = {name: train(name, block, data, options) for name, block in blocks.items()}
    plot(runs, options.plot)

    print(f"\n{'':<10} {'first loss':>10} {'last loss':>10} {'step':>12}")
    for name, (losses, times) in runs.items():
        print(f"{name:<10} {losses[0]:>10.4f} {losses[-1]:>10.4f} {sorted(times)[len(times) // 2]:>9.1f} ms")
    difference = max(abs(a - b) for a, b in zip(*(losses for losses, _ in runs.values())))
    print(f"\nlargest difference of the two losses: {difference:.1e}\nplot: {options.plot}")


if __name__ == "__main__":
    blocks = {"Causeway": CausalConv1d, "PyTorch": PlainConv1d}
    compare(__doc__.splitlines()[0], {name: lambda dim, c=c: Block(dim, c) for name, c in blocks.items()})
