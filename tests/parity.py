"""Gradients of `causeway run` against PyTorch's autograd, through files that NumPy and PyTorch wrote.

Each case is written as .npz by NumPy and as .safetensors by PyTorch, run through the command, and compared with
autograd in float64 on the same (already rounded) inputs. An element passes when its error is at most

    u32 · terms · S  +  u_out · |value|  +  tiny

where S is the same sum with every term replaced by its magnitude, `terms` counts the roundings that can add up, and
u is half a unit in the last place of f32 (sums) and of the output's dtype (the final rounding). With SiLU and a 16-bit
x, u_x/8 · S is added: the activation may be evaluated that much less precisely (docs/verification.md).
"""

import argparse
import itertools
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
TINY = {torch.float32: 2.0**-126, torch.float16: 2.0**-24, torch.bfloat16: 2.0**-126}


def convolve(x, weight, bias, states):
    """Causal depthwise convolution of one sequence, (batch, dim, seqlen), in the dtype of its inputs."""
    if x.shape[2] == 0:
        return x
    x = torch.cat([states, x], dim=2)
    return F.conv1d(x, weight.unsqueeze(1), bias, groups=x.shape[1])


def reference(t, silu):
    """y and final_states of PyTorch operations only, so that autograd gives every gradient."""
    x, weight, bias = t["x"], t["weight"], t.get("bias")
    states, width = t.get("initial_states"), t["weight"].shape[1]

    if "cu_seqlens" in t:
        ends = t["cu_seqlens"].tolist()
        pieces, finals = [], []
        for n, (start, end) in enumerate(zip(ends, ends[1:])):
            piece = x[:, :, start:end]
            before = states[n : n + 1] if states is not None else piece.new_zeros(1, x.shape[1], width - 1)
            pieces.append(convolve(piece, weight, bias, before))
            finals.append(torch.cat([before, piece], dim=2)[:, :, end - start :])
        pre, final_states = torch.cat(pieces, dim=2), torch.cat(finals, dim=0)
    elif "seq_idx" in t:
        # One masked product per tap: a tap counts where its position carries the output's index.
        index = t["seq_idx"]
        pre = torch.zeros_like(x) + (bias[:, None] if bias is not None else 0)
        for tap in range(width):
            back = width - 1 - tap
            shifted = F.pad(x, (back, 0))[:, :, : x.shape[2]]
            same = F.pad(index, (back, 0), value=-1)[:, : x.shape[2]] == index
            pre = pre + weight[:, tap, None] * shifted * same[:, None, :]
        pre = pre * (index >= 0)[:, None, :]
        final_states = None
    else:
        before = states if states is not None else x.new_zeros(*x.shape[:2], width - 1)
        pre = convolve(x, weight, bias, before)
        final_states = torch.cat([before, x], dim=2)[:, :, x.shape[2] :]

    y = F.silu(pre) if silu else pre
    return (y + t["residual"] if "residual" in t else y), final_states


DIFFERENTIABLE = ("x", "weight", "bias", "initial_states")


def gradients(tensors, silu):
    """float64 gradients, by the name of their input."""
    t = {name: v.double() if v.is_floating_point() else v for name, v in tensors.items()}
    leaves = [name for name in DIFFERENTIABLE if name in t]
    for name in leaves:
        t[name] = t[name].detach().requires_grad_()
    y, final_states = reference(t, silu)
    loss = (y * t["dy"]).sum()
    if "dfinal_states" in t:
        loss = loss + (final_states * t["dfinal_states"]).sum()
    found = torch.autograd.grad(loss, [t[name] for name in leaves], allow_unused=True)
    return {"d" + n: torch.zeros_like(t[n]) if g is None else g for n, g in zip(leaves, found)}


def magnitudes(tensors, silu):
    """The gradients with every term replaced by its magnitude: what rounding errors are proportional to."""
    absolute = {n: v.abs() if v.is_floating_point() else v for n, v in tensors.items()}
    # |silu'| is at most 1.1, and an error of pre moves it by at most half of that error; pre itself is a sum of
    # at most `width + 1` terms of the same magnitudes.
    plain = gradients(absolute, silu=False)
    if not silu:
        return plain
    t = {n: v.double() if v.is_floating_point() else v for n, v in absolute.items()}
    pre, _ = reference({n: v for n, v in t.items() if n != "residual"}, silu=False)
    scaled = dict(absolute, dy=(t["dy"] * (1.1 + pre)))
    return gradients(scaled, silu=False)


def make(kind, layout, dtype, weight_dtype, seed):
    """Inputs of one case, in logical layout (batch, dim, seqlen)."""
    g = torch.Generator().manual_seed(seed)
    batch, dim, seqlen, width = 3, 24, 37, 4
    if kind == "cu_seqlens":
        batch = 1
    draw = lambda *shape, of=dtype: (torch.rand(*shape, generator=g) * 2 - 1).to(of)
    t = {"x": draw(batch, dim, seqlen), "weight": draw(dim, width, of=weight_dtype), "dy": draw(batch, dim, seqlen)}
    if kind != "no-bias":
        t["bias"] = draw(dim, of=weight_dtype)
    if kind == "states":
        t["initial_states"], t["dfinal_states"] = draw(batch, dim, width - 1), draw(batch, dim, width - 1)
    if kind == "short-states":
        t["x"], t["dy"] = draw(batch, dim, 2), draw(batch, dim, 2)
        t["initial_states"], t["dfinal_states"] = draw(batch, dim, width - 1), draw(batch, dim, width - 1)
    if kind == "seq_idx":
        row = torch.tensor([0] * 9 + [1] * 3 + [-1] * 4 + [2] * (seqlen - 16), dtype=torch.int32)
        t["seq_idx"] = torch.stack([row.roll(5 * b) if b else row for b in range(batch)]).contiguous()
    if kind == "cu_seqlens":
        t["cu_seqlens"] = torch.tensor([0, 9, 9, 11, seqlen], dtype=torch.int64)
        t["initial_states"], t["dfinal_states"] = draw(4, dim, width - 1), draw(4, dim, width - 1)
    return t


def stored(tensors, layout):
    """As the file holds them."""
    swap = lambda n, v: v.transpose(1, 2) if n in ("x", "dy", "dx") and layout == "channel-last" else v
    return {n: swap(n, v).contiguous() for n, v in tensors.items()}


def run(command, tensors, layout, silu, extension, directory):
    """The gradients that the command writes, in logical layout."""
    source, target = directory / f"in.{extension}", directory / f"out.{extension}"
    if extension == "npz":
        np.savez(source, **{n: v.numpy() for n, v in stored(tensors, layout).items()})
    else:
        save_file(stored(tensors, layout), source)
    activation = "silu" if silu else "none"
    subprocess.run(
        [command, "run", "conv1d-backward", "--in", source, "--out", target, "--layout", layout,
         "--activation", activation],
        check=True, stdout=subprocess.DEVNULL,
    )
    if extension == "npz":
        found = {n: torch.from_numpy(v) for n, v in np.load(target).items()}
    else:
        found = load_file(target)
    return stored(found, layout)


def check(name, found, tensors, silu):
    """Prints one line and returns whether every gradient is within its bound."""
    expected, magnitude = gradients(tensors, silu), magnitudes(tensors, silu)
    if set(found) != set(expected):
        print(f"FAIL {name}: wrote {sorted(found)}, expected {sorted(expected)}")
        return False
    batch, _, seqlen = tensors["x"].shape
    width = tensors["weight"].shape[1]
    passed, parts = True, []
    for output, truth in expected.items():
        terms = batch * seqlen + 2 * width if output in ("dweight", "dbias") else 3 * width + 4
        of = tensors[output[1:]].dtype
        if found[output].dtype != of or found[output].shape != truth.shape:
            print(f"FAIL {name}: {output} is {found[output].dtype} {tuple(found[output].shape)}")
            return False
        error = (found[output].double() - truth).abs()
        bound = UNIT[torch.float32] * terms * magnitude[output] + UNIT[of] * truth.abs() + TINY[of]
        if silu and tensors["x"].dtype != torch.float32:
            bound += UNIT[tensors["x"].dtype] / 8 * magnitude[output]
        part = (error / bound).max().item()
        passed &= part <= 1
        parts.append(f"{output} {error.max().item():.1e} ({part:.1%} of its bound)")
    print(f"{'ok  ' if passed else 'FAIL'} {name}: {', '.join(parts)}")
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", type=pathlib.Path, help="the causeway binary")
    command = parser.parse_args().command.resolve()
    kinds = ["plain", "no-bias", "states", "short-states", "seq_idx", "cu_seqlens"]
    layouts = ["channel-first", "channel-last"]
    f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16
    dtypes = [(f32, f32), (f16, f16), (bf16, bf16), (bf16, f32)]
    passed, count = True, 0
    with tempfile.TemporaryDirectory() as directory:
        for kind, layout, (dtype, weight_dtype), silu in itertools.product(kinds, layouts, dtypes, [False, True]):
            # NumPy has no bfloat16.
            for extension in ["safetensors"] if bf16 in (dtype, weight_dtype) else ["safetensors", "npz"]:
                tensors = make(kind, layout, dtype, weight_dtype, seed=count)
                found = run(command, tensors, layout, silu, extension, pathlib.Path(directory))
                names = [str(d).removeprefix("torch.") for d in (dtype, weight_dtype)]
                name = " ".join([kind, layout, *names, "silu" if silu else "none", extension])
                passed &= check(name, found, tensors, silu)
                count += 1
    print(f"{count} cases against torch {torch.__version__}: {'all pass' if passed else 'FAILED'}")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
