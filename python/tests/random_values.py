"""Contexts of random calls whose inputs hold what is no number: how far it may reach, and how far it has to.

Plain PyTorch in float64 tells what depends on an element: whatever changes there when that element does. Such results are NaN if the
element is, and all others have the bits of the call without it.
"""

import math

import torch

import random_reference as reference
from random_contexts import MODULES, context, expect

VALUES = math.nan, math.nan, math.inf, -math.inf


def _outcome(run, name, where):
    """What plain PyTorch gives, by words: results, written tensors, and gradients; with other numbers somewhere in a tensor."""
    tensors = reference.doubled(run.fresh(wanted=()), run.wanted)
    with torch.no_grad():
        if where is not None:
            tensors[name][where] += 1
    results = run.operation.truth(tensors, run.choices)
    found = {f"result {at}": result.detach() for at, result in enumerate(results)}
    with torch.no_grad():
        found |= run.operation.outs(tensors, run.choices)
    dys = run.dys(run.plain.results)
    # The zeros that stand for the gradient of what is not used may be multiplied with what is no number.
    used = [(y, dy.cpu().double()) for y, dy in zip(results, dys) if dy is not None and y.requires_grad]
    if run.is_recorded and used and all(dy is not None for dy in dys):
        outputs, dys = zip(*used)
        gradients = torch.autograd.grad(outputs, [tensors[name] for name in run.wanted], dys, allow_unused=True)
        found |= {f"gradient of {name}": gradient for name, gradient in zip(run.wanted, gradients)}
    return found


@context("no number", without=(*MODULES, *(f"{name}.step" for name in MODULES)))
def _(run):
    """A NaN or an infinity reaches what depends on it, and changes no bit of anything else: not of other channels, rows, sequences and
    earlier positions, and nothing at all where it stands at padding."""
    names = [name for name, tensor in run.fresh().items() if tensor.is_floating_point() and tensor.numel()]
    if not names:
        return
    name, value = run.random.choice(names), run.random.choice(VALUES)
    leaves = run.fresh()
    values = leaves[name].detach()
    place = tuple(run.random.randrange(size) for size in values.shape)
    # In all places of an axis that is expanded.
    values[place] = value
    there = ~values.isfinite().cpu()
    # Kernels may multiply a tap by a zero where it has no position to read.
    is_weight = "weight" in name.split(".")
    row = there.any(-1, keepdim=True).expand(there.shape) if is_weight else there
    before, after, at_most = (_outcome(run, name, where) for where in (None, there, row))
    found, plain = (_by_words(run, outcome) for outcome in (run.attempt(leaves=leaves), run.plain))
    # An activation or a norm may have a limit at infinity, and a result is NaN where two infinities meet.
    has_limits = math.isinf(value) and (run.choices.get("activation") is not None or bool(run.choices.get("l2norm")))
    for words, tensor in found.items():
        if tensor is None or any(outcome.get(words) is None for outcome in (before, after, at_most)):
            continue
        depends, may = (before[words] != other[words] for other in (after, at_most))
        if words.startswith("gradient of weight"):
            may = may.any(-1, keepdim=True).expand(may.shape)
        depends, may = depends.to(tensor.device), may.to(tensor.device)
        said = f"{words}, with {value} in {name} at {place}"
        run.same(tensor.masked_fill(may, 0), plain[words].masked_fill(may, 0), said)
        if not has_limits:
            missed = depends & (~tensor.isnan() if math.isnan(value) else tensor.isfinite())
            expect(not missed.any(), f"{said}: {int(missed.sum())} elements depend on it and are numbers")


def _by_words(run, outcome):
    """An outcome's tensors, as `_outcome` names them."""
    found = {f"result {at}": result for at, result in enumerate(outcome.results)} | outcome.outs
    return found | {f"gradient of {name}": gradient for name, gradient in (outcome.gradients or {}).items()}
