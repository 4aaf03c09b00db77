"""Plain PyTorch in float64, sequence by sequence, and the errors that kernels may have beside it.

A convolution is a list of parts, one for each of its results: dicts of x, weight, bias, initial_states, seq_idx, cu_seqlens, the
gates B and C, residual, whether there is a SiLU, and a norm (head_dim, scale, eps). Most of them may be missing.

An element passes if its error is at most

    u · terms · S  +  u_out · |value|  +  tiny

where S is the same sum with the magnitude of every term, u is half a unit in the last place of what is summed in (float32; float64 for
float64), `terms` is how many roundings can add up, and u_out is half a unit of the result's dtype, for its one rounding. For results of
16 bits, u_out / 8 · S is added with SiLU, which may be evaluated so much less precisely, and 4 · u_out · S where products are rounded.
States are copies, which have to be exact, or products with B, which are rounded once.
"""

import torch

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
TINY = {torch.float64: 2.0**-1022, torch.float32: 2.0**-126, torch.float16: 2.0**-24, torch.bfloat16: 2.0**-126}


def is_sum(name):
    """Whether the gradient of an input of this name is a sum over batch and sequence."""
    return any(part in ("weight", "bias") for part in name.split("."))


def sequence(x, weight, bias, states, index):
    """One sequence: x (dim, n), states (dim, width - 1), index (n,); the sum before the activation, and the final states."""
    count, before = x.shape[1], weight.shape[1] - 1
    if count:
        first = index[:1]
        states = states * (first >= 0)
        x = x * (index >= 0)
        index = torch.cat([first.expand(before), index])
    joined = torch.cat([states, x], 1)
    final = joined[:, count:]
    if not count:
        return x, final
    taps = joined.unfold(1, before + 1, 1)
    counts = (index.unfold(0, before + 1, 1) == index[before:, None]) & (index[before:, None] >= 0)
    pre = (taps * counts * weight[:, None]).sum(-1)
    if bias is not None:
        pre = pre + bias[:, None] * (index[before:] >= 0)
    return pre, final


def convolve(part):
    """The sums before the activation, and the final states, of all sequences."""
    x, weight, bias, states = (part.get(name) for name in ("x", "weight", "bias", "initial_states"))
    if part.get("B") is not None:
        x = x * part["B"]
    seq_idx, ends = part.get("seq_idx"), part.get("cu_seqlens")
    if ends is not None:
        ends = ends.tolist()
        rows = [x[0, :, start:end] for start, end in zip(ends, ends[1:])]
    else:
        rows = list(x)
    found = []
    for at, row in enumerate(rows):
        index = seq_idx[at] if seq_idx is not None else torch.zeros(row.shape[1], dtype=torch.int32)
        before = states[at] if states is not None else x.new_zeros(x.shape[1], weight.shape[1] - 1)
        found.append(sequence(row, weight, bias, before, index))
    if not found:
        return x, x.new_zeros(0, x.shape[1], weight.shape[1] - 1)
    pre, final = zip(*found)
    return torch.cat(pre, 1)[None] if ends is not None else torch.stack(pre), torch.stack(final)


def heads(y, head_dim):
    """(batch, channels, seqlen) as (batch, seqlen, heads, head_dim)."""
    batch, channels, seqlen = y.shape
    return y.transpose(1, 2).reshape(batch, seqlen, channels // head_dim, head_dim)


def result(part):
    """y and the final states of one part."""
    pre, final = convolve(part)
    y = pre * torch.sigmoid(pre) if part.get("silu") else pre
    if part.get("C") is not None:
        y = y * part["C"]
    if part.get("residual") is not None:
        y = y + part["residual"]
    if "head_dim" in part:
        y = heads(y, part["head_dim"])
        if part["scale"] is not None:
            y = y * torch.rsqrt(y.square().sum(-1, keepdim=True) + part["eps"]) * part["scale"]
    return y, final


def _magnitude_of_norm(part, pre, magnitude):
    """By heads: 1/norm, and what errors of a normalized element are proportional to."""
    u = heads(pre * torch.sigmoid(pre) if part.get("silu") else pre, part["head_dim"])
    size = heads(magnitude, part["head_dim"])
    scale = torch.rsqrt(u.square().sum(-1, keepdim=True) + part["eps"])
    # The norm itself has the relative error of the sums that it is made of.
    relative = 1 + scale * size.square().sum(-1, keepdim=True).sqrt()
    return scale, relative, size * scale + u.abs() * scale * relative


def magnitudes(part, sizes):
    """The sums and final states of a part with all its terms at their magnitude, and that of its y."""
    silu = 1.1 if part.get("silu") else 1.0
    pre, final = convolve(sizes)
    act = silu * pre
    if "head_dim" in part and part["scale"] is not None:
        exact, _ = convolve(part)
        return pre, final, _magnitude_of_norm(part, exact, act)[2] * abs(part["scale"])
    y = act * sizes["C"] if part.get("C") is not None else act
    y = y + sizes["residual"] if part.get("residual") is not None else y
    return pre, final, heads(y, part["head_dim"]) if "head_dim" in part else y


def loss_of_magnitudes(part, sizes, dy, dfinal):
    """A sum whose gradients are those of the part with all terms at their magnitude."""
    pre, final = convolve(sizes)
    silu, fixed = 1.1 if part.get("silu") else 1.0, pre.detach()
    loss = pre.sum() * 0
    if dfinal is not None:
        loss = loss + (final * dfinal.abs()).sum()
    if dy is None:
        return loss
    dy = dy.abs()
    if "head_dim" in part:
        exact, _ = convolve(part)
        if part["scale"] is not None:
            scale, relative, size = (t.detach() for t in _magnitude_of_norm(part, exact, silu * fixed))
            dy = dy * abs(part["scale"])
            dy = relative * scale * (dy + 2 * size * (size * dy).sum(-1, keepdim=True))
        dy = dy.reshape(*dy.shape[:2], -1).transpose(1, 2) if dy.numel() else torch.zeros_like(fixed)
    if part.get("residual") is not None:
        loss = loss + (sizes["residual"] * dy).sum()
    if part.get("C") is not None:
        loss = loss + (sizes["C"] * (dy * silu * fixed)).sum()
        dy = dy * sizes["C"].detach()
    return loss + (pre * (dy * (1.1 + fixed) if part.get("silu") else dy)).sum()


def doubled(tensors, wanted=()):
    """Copies in float64 on the host, of which these require a gradient."""
    wide = {n: t.detach().cpu().double() if t.is_floating_point() else t.detach().cpu() for n, t in tensors.items()}
    return {n: t.clone().requires_grad_(n in wanted) for n, t in wide.items()}


def bound(truth, size, dtype, terms, extra=0.0):
    """What an error of each element may be."""
    unit = UNIT[torch.float64 if dtype is torch.float64 else torch.float32]
    # The truth of float64 has such errors too.
    terms = 2 * terms if dtype is torch.float64 else terms
    return (unit * terms + extra) * size + UNIT[dtype] * truth.abs() + TINY[dtype]


def product(a, b):
    """a @ b, and the same of magnitudes."""
    return a @ b, a.abs() @ b.abs()
