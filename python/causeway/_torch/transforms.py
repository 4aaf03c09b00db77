"""The operations under the transforms of `torch.func`: grad, vjp, jacrev, and vmap over any of its float tensors.

Channels of the convolution do not mix, so a batch that vmap adds is a batch of channels: B times x (batch, dim, seqlen) is one x of
(batch, B * dim, seqlen), with B * dim rows of weight. That holds for the gradients too, dweight included.
"""

import torch

from causeway._torch import operators

_gradients = operators.ConvolutionGradients()


class CausalConv1d(torch.autograd.Function):
    """The operator `forward`, as transforms take it."""

    @staticmethod
    def forward(*arguments):
        """(y, final_states); no element in final_states unless they are wanted."""
        return operators.forward.overload(*arguments)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keeps what the backward pass reads."""
        _gradients.save(ctx, inputs)

    @staticmethod
    def backward(ctx, *given):
        """Gradients of all inputs."""
        return _gradients.of(
            ctx, given, lambda *call: operators.backward_results(*call, CausalConv1dBackward.apply)
        )

    @staticmethod
    def jvp(ctx, *tangents):
        """Always an error."""
        raise NotImplementedError(
            "the causal convolution has no forward-mode gradient: use reverse mode (grad, vjp, jacrev), or "
            "causeway.causal_conv1d_ref"
        )

    @staticmethod
    def vmap(info, in_dims, *arguments):
        """The added batch as channels."""
        return _as_channels(CausalConv1d.apply, operators.forward, info.batch_size, in_dims, arguments)


class CausalConv1dBackward(torch.autograd.Function):
    """The operator `backward`, as transforms take it."""

    @staticmethod
    def forward(*arguments):
        """dx and the other gradients, without elements where there is no such input."""
        return operators.backward.overload(*arguments)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keeps no tensor: there is no second derivative."""
        operators.save_call(ctx, inputs)

    @staticmethod
    def backward(ctx, *gradients):
        """Always an error."""
        operators.refuse_second_derivative(ctx, *gradients)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        """The added batch as channels."""
        return _as_channels(CausalConv1dBackward.apply, operators.backward, info.batch_size, in_dims, arguments)


def _as_channels(apply, operator, size, in_dims, arguments):
    """Joins an added batch with the channels of each argument, and takes it out of each result again."""
    joined, dim = [], 0
    for argument, at, value in zip(operator.arguments, in_dims, arguments, strict=True):
        if argument.tensor is not None and value is not None:
            if "dim" in argument.tensor.axes:
                axis = argument.tensor.axes.index("dim")
                value = _beside_channels(value, at, axis, size)
                dim = value.shape[axis + 1]
                value = value.flatten(axis, axis + 1)
            elif at is not None:
                raise NotImplementedError(
                    f"vmap over {argument.name} is not supported: all entries of the added batch share it; put them "
                    "into the batch of x instead"
                )
        joined.append(value)
    results = []
    there = operator.there(arguments)
    for result, value, is_there in zip(operator.results, apply(*joined), there, strict=True):
        if is_there:
            axis = result.axes.index("dim")
            value = value.unflatten(axis, (size, dim)).movedim(axis, 0)
        results.append(value)
    return tuple(results), tuple(0 if is_there else None for is_there in there)


def _beside_channels(tensor, at, axis, size):
    """(…, dim, …) with the added batch at an axis, or not at all, as (…, B, dim, …)."""
    if at is None:
        return tensor.unsqueeze(axis).expand(*tensor.shape[:axis], size, *tensor.shape[axis:])
    return tensor.movedim(at, axis)


class Gemm(torch.autograd.Function):
    """The operator `gemm`, as transforms take it."""

    @staticmethod
    def forward(a, b, algorithm):
        """a @ b."""
        return operators.gemm((a, b), algorithm)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keeps what the gradients are made of."""
        operators.save_gemm(ctx, inputs)

    @staticmethod
    def backward(ctx, grad_c):
        """The gradients that are needed, which are products again."""
        a, b = ctx.saved_tensors
        grad_a = None if b is None else Gemm.apply(grad_c, b.transpose(0, 1), ctx.algorithm)
        grad_b = None if a is None else Gemm.apply(a.transpose(0, 1), grad_c, ctx.algorithm)
        return grad_a, grad_b, None

    @staticmethod
    def jvp(ctx, *tangents):
        """Always an error."""
        raise NotImplementedError(
            "gemm has no forward-mode gradient: use reverse mode (grad, vjp, jacrev), or PyTorch's a @ b"
        )

    @staticmethod
    def vmap(info, in_dims, a, b, algorithm):
        """One product of all rows if only a has the added batch, else one for each entry."""
        size, (at_a, at_b, _) = info.batch_size, in_dims
        if at_b is None:
            entries = a.movedim(at_a, 0)
            return Gemm.apply(entries.flatten(0, 1), b, algorithm).unflatten(0, entries.shape[:2]), 0
        if size == 0:
            # Sums over no entries stand for them: what is wrong with either is found, and both get a gradient.
            a, b = (t if at is None else t.movedim(at, -1).sum(-1, dtype=t.dtype) for t, at in ((a, at_a), (b, at_b)))
            return Gemm.apply(a, b, algorithm).expand(1, -1, -1)[:0], 0
        of_entries = [[t] * size if at is None else t.unbind(at) for t, at in ((a, at_a), (b, at_b))]
        return torch.stack([Gemm.apply(*entry, algorithm) for entry in zip(*of_entries, strict=True)]), 0
