"""The operations on PyTorch tensors.

Two ways lead to the same kernels. Eager calls of plain tensors go to them straight, with a `torch.autograd.Function`
around them when a gradient is needed: that costs a few microseconds. Where something intercepts operations (torch.compile,
fake tensors, torch.func, dispatch modes, tensor subclasses), a call goes through PyTorch's dispatcher, to the operators of
`operators.py`.
"""

from causeway._torch.conv1d import causal_conv1d_fn, causal_conv1d_update, causal_conv1d_varlen_states
from causeway._torch.gated import causal_conv1d_gated_packed
from causeway._torch.gemm import gemm, gemm_grad_a, gemm_grad_ab, gemm_grad_b
from causeway._torch.qkv import causal_conv1d_qkv, causal_conv1d_qkv_update

__all__ = [
    "causal_conv1d_fn",
    "causal_conv1d_gated_packed",
    "causal_conv1d_qkv",
    "causal_conv1d_qkv_update",
    "causal_conv1d_update",
    "causal_conv1d_varlen_states",
    "gemm",
    "gemm_grad_a",
    "gemm_grad_ab",
    "gemm_grad_b",
]
