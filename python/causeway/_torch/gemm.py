"""Matrix products of PyTorch tensors; see `causeway.gemm` for the arguments."""

import torch
import torch.autograd.forward_ad as forward_ad

from causeway import _native
from causeway._torch import operators, transforms
from causeway._torch.eager import (
    autocast_dtype,
    cast,
    dtype_name,
    expect_tensors,
    functorch_level,
    is_batched_gradient,
    is_compiling,
    is_distributed,
    refuse_forward_mode,
    require_axes,
    require_one_device,
    resolved,
)
from causeway._torch.tables import Table


class Gemm(torch.autograd.Function):
    """The kernels, for eager calls that need a gradient."""

    @staticmethod
    def forward(ctx, a, b, algorithm):
        """a @ b."""
        operators.save_gemm(ctx, (a, b, algorithm))
        return _native.gemm.run((a, b), algorithm)

    @staticmethod
    def backward(ctx, grad_c):
        """Those of grad_a and grad_b that are needed."""
        a, b = ctx.saved_tensors
        wants_a, wants_b, _ = ctx.needs_input_grad
        grad_c = resolved(grad_c)
        if wants_a and wants_b:
            return *gemm_grad_ab(grad_c, a, b, ctx.algorithm), None
        if wants_a:
            return gemm_grad_a(grad_c, b, ctx.algorithm), None, None
        return None, gemm_grad_b(grad_c, a, ctx.algorithm), None


class _Eager:
    """Eager calls of an operation."""

    def __init__(self, operation):
        self._table, self._record = Table(operation), operation.record

    def expect(self, *inputs):
        """All of them are tensors."""
        expect_tensors(self._table, *inputs)

    def __call__(self, inputs, algorithm, is_cast=True):
        """The result, or None if the call needs the dispatcher; an int if it needs autograd alone."""
        if is_compiling() or any(isinstance(t, torch.Tensor) and is_batched_gradient(t) for t in inputs):
            return None
        try:
            result = self._record(inputs, algorithm, None, is_cast)
        except RuntimeError:
            # A nested tensor of the older kind is a plain one by its class, and has no words for what it lacks.
            self.expect(*inputs)
            raise
        if type(result) is int:
            self.expect(*inputs)
        return result


class _Gradient(_Eager):
    """Eager calls of a gradient. It is a product of other operands where the call needs the dispatcher or autograd."""

    def __init__(self, operation):
        super().__init__(operation)
        self._axes = tuple(argument.axes for argument in operation.inputs)

    def expect(self, *inputs):
        """They are matrices that fit, in the words of the kernels: as operands of a product they would have other names."""
        super().expect(*inputs)
        names, dtype, sizes = self._table.inputs, inputs[0].dtype, {}
        if dtype not in (torch.float16, torch.bfloat16):
            found = dtype_name(dtype)
            raise TypeError(f"{names[0]} has dtype {found}: expected float16 or bfloat16, the dtypes of a GEMM")
        for name, axes, matrix in zip(names, self._axes, inputs):
            for axis, size in zip(axes, require_axes(name, matrix, f"({axes[0]}, {axes[1]})")):
                expected, source = sizes.setdefault(axis, (size, name))
                if size != expected:
                    raise ValueError(f"{name} has {axis} {size}: expected {expected}, the {axis} of {source}")
            if matrix.dtype != dtype:
                found, expected = dtype_name(matrix.dtype), dtype_name(dtype)
                raise TypeError(f"{name} has dtype {found}: expected {expected}, the dtype of {names[0]}")
        require_one_device(dict(zip(names, inputs)))

    def __call__(self, inputs, algorithm):
        """The result, or None where a product has to give it, of matrices that fit."""
        result = super().__call__(inputs, algorithm)
        if result is None:
            self.expect(*inputs)
        return None if type(result) is int else result


_gemm = _Eager(_native.gemm)
_grad_a, _grad_b, _grad_ab = (
    _Gradient(operation) for operation in (_native.gemm_grad_a, _native.gemm_grad_b, _native.gemm_grad_ab)
)


def gemm(a, b, algorithm):
    """See `causeway.gemm`."""
    result = _gemm((a, b), algorithm, False)
    if result is None:
        _gemm.expect(a, b)
        if (dtype := autocast_dtype(a)) is not None:
            return _product(cast(a, dtype), cast(b, dtype), algorithm)
    return _finished(result, a, b, algorithm)


def _product(a, b, algorithm):
    """`gemm` of matrices that autocast leaves as they are: cast ones, and those of gradients."""
    return _finished(_gemm((a, b), algorithm), a, b, algorithm)


def _finished(result, a, b, algorithm):
    """The result of `_gemm`, or one that comes through autograd or the dispatcher."""
    if type(result) is int:
        return Gemm.apply(a, b, algorithm)
    if result is not None:
        return result
    if is_compiling():
        refuse_forward_mode("gemm", "PyTorch's a @ b")
    if is_distributed(a, b):
        from causeway._torch import dtensor  # noqa: F401: gives the operator its strategies
    # Not in a helper: Dynamo may skip this frame and still compile the helper, where `is_compiling()` is True.
    if not is_compiling() and (functorch_level() is not None or forward_ad._current_level >= 0):
        return transforms.Gemm.apply(a, b, algorithm)
    return operators.gemm((a, b), algorithm)


def gemm_grad_a(grad_c, b, algorithm):
    """See `causeway.gemm_grad_a`; a product too, where it is differentiated or compiled."""
    result = _grad_a((grad_c, b), algorithm)
    return _product(grad_c, b.transpose(0, 1), algorithm) if result is None else result


def gemm_grad_b(grad_c, a, algorithm):
    """See `causeway.gemm_grad_b`."""
    result = _grad_b((grad_c, a), algorithm)
    return _product(a.transpose(0, 1), grad_c, algorithm) if result is None else result


def gemm_grad_ab(grad_c, a, b, algorithm):
    """See `causeway.gemm_grad_ab`."""
    result = _grad_ab((grad_c, a, b), algorithm)
    if result is not None:
        return result
    return gemm_grad_a(grad_c, b, algorithm), gemm_grad_b(grad_c, a, algorithm)
