"""Whether a call may go straight to its kernel, and what autocast makes of its tensors."""

import contextlib
import sys

import torch
import torch.autograd.forward_ad as forward_ad

from causeway._kind import kind_of
from causeway._qkv import each

dispatch_modes = torch._C._len_torch_dispatch_stack
functorch_level = torch._C._functorch.peek_interpreter_stack
is_tracing = torch._C._is_tracing
is_any_autocast_enabled = torch._C._is_any_autocast_enabled

is_compiling = torch.compiler.is_compiling

# Under `torch.compile` alone, in half of the time: what else traces a call shows itself by its tensors or as a dispatch mode.
is_dynamo_compiling = torch.compiler.is_dynamo_compiling

# A gradient of `torch.autograd.grad(is_grads_batched=True)`, which has no memory of its own.
is_batched_gradient = torch._C._functorch.is_legacy_batchedtensor

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))


def is_direct(*tensors):
    """True if nothing but autograd, at most, intercepts an operation on these tensors, the first of which is x."""
    x = tensors[0]
    return (
        PLAIN.issuperset(map(type, tensors))
        and (x.is_cuda or x.is_cpu)
        and not dispatch_modes()
        and functorch_level() is None
        and not is_tracing()
        and forward_ad._current_level < 0
    )


@torch.compiler.assume_constant_result
def _has_forward_mode():
    levels = torch._C._functorch.get_interpreter_stack() or ()
    forward = torch._C._functorch.TransformType.Jvp
    return forward_ad._current_level >= 0 or any(level.key() == forward for level in levels)


def refuse_forward_mode(function, instead):
    """Raises the error for a call with forward-mode gradients that a compiler traces: an operator's would be 0."""
    # Dynamo guards on the level; what `_has_forward_mode` gives is a constant of the trace.
    if forward_ad._current_level >= 0 or _has_forward_mode():
        raise NotImplementedError(
            f"{function} has no forward-mode gradient: use reverse mode (grad, vjp, jacrev), or {instead}"
        )


def autocast_dtype(x):
    """The dtype that autocast wants for tensors on x's device; None outside of autocast."""
    if is_compiling() or is_any_autocast_enabled():
        device_type = x.device.type
        # PyTorch has no words on autocast for meta tensors.
        if device_type != "meta" and torch.is_autocast_enabled(device_type):
            return torch.get_autocast_dtype(device_type)
    return None


def needs_gradient(*tensors):
    """True if autograd records an operation on these tensors. What is no tensor is refused later."""
    return torch.is_grad_enabled() and any(getattr(tensor, "requires_grad", False) for tensor in tensors)


def cast(tensor, dtype):
    """As autocast casts an argument of a convolution: float64 and integers stay. What is no tensor is refused later."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(dtype)


def joined(tensors, axis):
    """Tensors of one dtype along an axis. In a backward pass under autocast, torch.cat refuses those of its other 16-bit dtype."""
    with torch.autocast(tensors[0].device.type, enabled=False) if autocast_dtype(tensors[0]) is not None else contextlib.nullcontext():
        return torch.cat(tensors, axis)


def dtype_name(dtype):
    """A dtype without the name of PyTorch's module, as errors have it."""
    return str(dtype).removeprefix("torch.")


def resolved(gradient):
    """A gradient whose values lie in memory. PyTorch negates that of an imaginary part of a conjugate only where it is read. A compiler
    cannot follow the question, and its operators are given such values."""
    if gradient is None or is_compiling() or not gradient.is_neg():
        return gradient
    return gradient.resolve_neg()


def needs_dispatcher(*tensors):
    """True for tensors of PyTorch's, the first of which is x, in a call that has to go through the dispatcher."""
    return is_compiling() or (isinstance(tensors[0], torch.Tensor) and not is_direct(*tensors))


def expect_tensors(table, *tensors):
    """Every argument is a tensor of PyTorch's, or None if it is not among the required ones."""
    for name, value in zip(table.names, tensors):
        if value is not None or name in table.required:
            expect_tensor(name, value, table.names[0])


def naming(names, given, function, *arguments):
    """What a function gives of these arguments and others. If it fails, the first of them that is no strided tensor is named: PyTorch has
    other words for a view of a sparse one, or the shape of a nested one. Asking before the call would slow every call that is right."""
    if is_dynamo_compiling():
        return function(given, *arguments)
    try:
        return function(given, *arguments)
    except Exception:
        for name, value in each(names, given):
            expect_tensor(name, value, names[0])
        raise


def expect_tensor(name, value, first="x"):
    """An argument is a tensor of PyTorch's, as the first one is, and neither nested nor sparse."""
    if not isinstance(value, torch.Tensor):
        # No module of NumPy's is imported to tell its arrays apart.
        fix = f"; pass torch.from_numpy({name})" if type(value).__module__ == "numpy" else ""
        if not fix and hasattr(type(value), "__dlpack__"):
            fix = f"; pass torch.from_dlpack({name})"
        as_first = "" if name == first else f", as {first} is"
        raise TypeError(f"{name} is {kind_of(value)}: expected a torch.Tensor{as_first}{fix}")
    # The compiler of PyTorch 2.4 cannot ask inside of a backward pass.
    if is_compiling():
        return
    if value.is_nested:
        expected = "expected one with a shape and strides"
        if name in ("x", "packed"):
            expected = (
                "expected sequences packed one after the other; for a jagged (batch, seqlen, dim), pass "
                f"{name}.values().T[None] with cu_seqlens={name}.offsets()"
            )
        raise TypeError(f"{name} is a nested tensor: {expected}")
    # As the extension has it.
    if value.layout is not torch.strided:
        raise RuntimeError(f"{name} has layout {value.layout}: expected torch.strided; pass {name}.to_dense()")


def require_one_device(tensors):
    """As kernels have it of tensors with memory: for fake ones, by name, all on the device of the first."""
    first, *others = tensors
    for name in others:
        if tensors[name].device != tensors[first].device:
            found, expected = tensors[name].device, tensors[first].device
            raise RuntimeError(f"{name} is on {found}: expected {expected}, where {first} is")


def is_distributed(*tensors):
    """True if one of them is a DTensor. Its module is not imported to find out."""
    # In PyTorch 2.4 the module is there without it.
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and any(isinstance(tensor, kind) for tensor in tensors)


def require_axes(argument, tensor, expected):
    """The sizes of a tensor that results are made from."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{argument} is {kind_of(tensor)}: expected a torch.Tensor")
    if tensor.dim() != len(expected.split(",")):
        raise ValueError(f"{argument} has shape {tuple(tensor.shape)}: expected {expected}")
    return tensor.shape
