"""Matrix products of PyTorch tensors; see `causeway.gemm` for the arguments."""

import torch

from causeway._torch import kernels, operators, transforms
from causeway._torch.eager import (
    autocast_dtype,
    cast,
    expect_tensors,
    is_compiling,
    is_direct,
    is_distributed,
    is_transformed,
)


class _Gemm(torch.autograd.Function):
    """The kernels, for eager calls that need a gradient."""

    @staticmethod
    def forward(ctx, a, b, algorithm):
        """a @ b."""
        ctx.save_for_backward(a, b)
        ctx.algorithm = algorithm
        return kernels.gemm(a, b, algorithm)

    @staticmethod
    def backward(ctx, grad_c):
        """Those of grad_a and grad_b that are needed."""
        a, b = ctx.saved_tensors
        wants_a, wants_b, _ = ctx.needs_input_grad
        if wants_a and wants_b:
            return *gemm_grad_ab(grad_c, a, b, ctx.algorithm), None
        if wants_a:
            return gemm_grad_a(grad_c, b, ctx.algorithm), None, None
        return None, gemm_grad_b(grad_c, a, ctx.algorithm), None


def _is_kernel_call(*tensors):
    """True if no gradient of the result will be asked for, and nothing else wants to see the call."""
    if is_compiling() or not is_direct(*tensors):
        return False
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))


def gemm(a, b, algorithm):
    """See `causeway.gemm`."""
    expect_tensors(("a", "b"), a=a, b=b)
    if is_distributed(a, b):
        from causeway._torch import dtensor  # noqa: F401: gives the operator its strategies
    dtype = autocast_dtype(a)
    if dtype is not None:
        a, b = cast(a, dtype), cast(b, dtype)
    if _is_kernel_call(a, b):
        return kernels.gemm(a, b, algorithm)
    if is_transformed():
        return transforms.Gemm.apply(a, b, algorithm)
    if is_compiling() or not is_direct(a, b):
        return operators.gemm(a, b, algorithm)
    return _Gemm.apply(a, b, algorithm)


def gemm_grad_a(grad_c, b, algorithm):
    """See `causeway.gemm_grad_a`; a product too, where it is differentiated or compiled."""
    expect_tensors(("grad_c", "b"), grad_c=grad_c, b=b)
    if _is_kernel_call(grad_c, b):
        return kernels.gemm_grad_a(grad_c, b, algorithm)
    return gemm(grad_c, b.transpose(0, 1), algorithm)


def gemm_grad_b(grad_c, a, algorithm):
    """See `causeway.gemm_grad_b`."""
    expect_tensors(("grad_c", "a"), grad_c=grad_c, a=a)
    if _is_kernel_call(grad_c, a):
        return kernels.gemm_grad_b(grad_c, a, algorithm)
    return gemm(a.transpose(0, 1), grad_c, algorithm)


def gemm_grad_ab(grad_c, a, b, algorithm):
    """See `causeway.gemm_grad_ab`."""
    expect_tensors(("grad_c", "a", "b"), grad_c=grad_c, a=a, b=b)
    if _is_kernel_call(grad_c, a, b):
        return kernels.gemm_grad_ab(grad_c, a, b, algorithm)
    return gemm_grad_a(grad_c, b, algorithm), gemm_grad_b(grad_c, a, algorithm)
