"""The operations under the transforms of `torch.func`: grad, vjp, jacrev, and vmap over any of its float tensors.

Channels of the convolution do not mix, so a batch that vmap adds is a batch of channels: B times x (batch, dim, seqlen) is one x of
(batch, B * dim, seqlen), with B * dim rows of weight. That holds for the gradients too, dweight included.
"""

import torch

from causeway._torch import operators


class Convolution(torch.autograd.Function):
    """`operators.forward`, as transforms take it."""

    @staticmethod
    def forward(x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, wants_states):
        """(y, final_states); no element in final_states unless they are wanted."""
        return operators.forward(
            x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, silu, wants_states
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keeps what the backward pass reads."""
        x, weight, bias, initial_states, seq_idx, cu_seqlens, residual, ctx.silu, ctx.wants_states = inputs
        ctx.save_for_backward(x, weight, bias, initial_states, seq_idx, cu_seqlens)
        ctx.has_residual = residual is not None

    @staticmethod
    def backward(ctx, dy, dfinal_states):
        """Gradients of all inputs."""
        x, weight, bias, initial_states, seq_idx, cu_seqlens = ctx.saved_tensors
        states = dfinal_states if ctx.wants_states else None
        dx, dweight, dbias, dinitial_states = ConvolutionBackward.apply(
            x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, states, ctx.silu
        )
        dbias = None if bias is None else dbias
        dinitial_states = None if initial_states is None else dinitial_states
        return dx, dweight, dbias, dinitial_states, None, None, dy if ctx.has_residual else None, None, None

    @staticmethod
    def jvp(ctx, *tangents):
        """Always an error."""
        raise NotImplementedError(
            "causal_conv1d_fn has no forward-mode gradient: use reverse mode (grad, vjp, jacrev), or "
            "causeway.causal_conv1d_ref"
        )

    @staticmethod
    def vmap(
        info,
        in_dims,
        x,
        weight,
        bias,
        initial_states,
        seq_idx,
        cu_seqlens,
        residual,
        silu,
        wants_states,
    ):
        """The added batch as channels."""
        channels = _Channels(info.batch_size, in_dims, seq=(4, 5))
        y, final_states = Convolution.apply(
            channels.join(x, 0, 1),
            channels.join(weight, 1, 0),
            channels.join(bias, 2, 0),
            channels.join(initial_states, 3, 1),
            seq_idx,
            cu_seqlens,
            channels.join(residual, 6, 1),
            silu,
            wants_states,
        )
        if wants_states:
            return (channels.split(y, 1), channels.split(final_states, 1)), (0, 0)
        return (channels.split(y, 1), final_states), (0, None)


class ConvolutionBackward(torch.autograd.Function):
    """`operators.backward`, as transforms take it."""

    @staticmethod
    def forward(x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, silu):
        """(dx, dweight, dbias, dinitial_states), without elements where there is no such input."""
        return operators.backward(
            x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, silu
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Nothing is kept: there is no second derivative."""

    @staticmethod
    def backward(ctx, *gradients):
        """Always an error."""
        operators.refuse_second_derivative(ctx, *gradients)

    @staticmethod
    def vmap(info, in_dims, x, weight, bias, dy, initial_states, seq_idx, cu_seqlens, dfinal_states, silu):
        """The added batch as channels."""
        channels = _Channels(info.batch_size, in_dims, seq=(5, 6))
        dx, dweight, dbias, dinitial_states = ConvolutionBackward.apply(
            channels.join(x, 0, 1),
            channels.join(weight, 1, 0),
            channels.join(bias, 2, 0),
            channels.join(dy, 3, 1),
            channels.join(initial_states, 4, 1),
            seq_idx,
            cu_seqlens,
            channels.join(dfinal_states, 7, 1),
            silu,
        )
        gradients = (
            channels.split(dx, 1),
            channels.split(dweight, 0),
            dbias if bias is None else channels.split(dbias, 0),
            dinitial_states if initial_states is None else channels.split(dinitial_states, 1),
        )
        return gradients, (0, 0, None if bias is None else 0, None if initial_states is None else 0)


class _Channels:
    """Joins an added batch with the channels of a tensor, and takes it out again."""

    def __init__(self, size, in_dims, seq):
        self.size, self.in_dims = size, in_dims
        for name, argument in zip(("seq_idx", "cu_seqlens"), seq, strict=True):
            if in_dims[argument] is not None:
                raise NotImplementedError(
                    f"vmap over {name} is not supported: all entries of the added batch share it; put them into "
                    "the batch of x instead"
                )

    def join(self, tensor, argument, axis):
        """(…, dim, …) with the added batch somewhere, or not at all, as (…, B * dim, …)."""
        if tensor is None:
            return None
        at = self.in_dims[argument]
        if at is None:
            tensor = tensor.unsqueeze(axis).expand(*tensor.shape[:axis], self.size, *tensor.shape[axis:])
        else:
            tensor = tensor.movedim(at, axis)
        return tensor.flatten(axis, axis + 1)

    def split(self, tensor, axis):
        """(…, B * dim, …) as (B, …, dim, …)."""
        return tensor.unflatten(axis, (self.size, -1)).movedim(axis, 0)


class Gemm(torch.autograd.Function):
    """`operators.gemm`, as transforms take it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a, b, algorithm):
        """a @ b."""
        return operators.gemm(a, b, algorithm)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keeps both matrices."""
        a, b, ctx.algorithm = inputs
        ctx.save_for_backward(a, b)

    @staticmethod
    def backward(ctx, grad_c):
        """Both gradients, which are products again."""
        a, b = ctx.saved_tensors
        grad_a = Gemm.apply(grad_c, b.transpose(0, 1), ctx.algorithm)
        grad_b = Gemm.apply(a.transpose(0, 1), grad_c, ctx.algorithm)
        return grad_a, grad_b, None
