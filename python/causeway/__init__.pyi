import os
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, overload

import causeway.drop_in.lfm3
import causeway.drop_in.patched
from causeway import _verify
from causeway import drop_in as drop_in
from causeway import kernels as kernels
from causeway import nn as nn
from causeway import parallel as parallel

_Tensor = TypeVar("_Tensor")  # torch.Tensor or numpy.ndarray: all of a call alike

__all__ = [
    "causal_conv1d_fn",
    "causal_conv1d_gated",
    "causal_conv1d_gated_packed",
    "causal_conv1d_gated_update",
    "causal_conv1d_qkv",
    "causal_conv1d_qkv_update",
    "causal_conv1d_ref",
    "causal_conv1d_update",
    "causal_conv1d_update_ref",
    "causal_conv1d_varlen_states",
    "empty_cache",
    "gemm",
    "gemm_grad_a",
    "gemm_grad_ab",
    "gemm_grad_b",
    "install_causal_conv1d",
    "install_lfm3",
    "patch_transformers",
    "verify",
    "__version__",
]

__version__: str

# One of None, "silu" and "swish", in whatever a configuration keeps it.
_Activation = str | None

# Any of "q", "k" and "v", but not as one string.
_Names = tuple[str, ...] | list[str] | set[str] | frozenset[str]
_Algorithm = Literal["fast", "exact"]

@overload
def causal_conv1d_fn(
    x: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = None,
    seq_idx: _Tensor | None = None,
    initial_states: _Tensor | None = None,
    return_final_states: Literal[False] = False,
    final_states_out: _Tensor | None = None,
    activation: _Activation = None,
    *,
    cu_seqlens: _Tensor | None = None,
    residual: _Tensor | None = None,
) -> _Tensor: ...
@overload
def causal_conv1d_fn(
    x: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = None,
    seq_idx: _Tensor | None = None,
    initial_states: _Tensor | None = None,
    *,
    return_final_states: Literal[True],
    final_states_out: _Tensor | None = None,
    activation: _Activation = None,
    cu_seqlens: _Tensor | None = None,
    residual: _Tensor | None = None,
) -> tuple[_Tensor, _Tensor]: ...
@overload
def causal_conv1d_fn(
    x: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None,
    seq_idx: _Tensor | None,
    initial_states: _Tensor | None,
    return_final_states: Literal[True],
    final_states_out: _Tensor | None = None,
    activation: _Activation = None,
    *,
    cu_seqlens: _Tensor | None = None,
    residual: _Tensor | None = None,
) -> tuple[_Tensor, _Tensor]: ...
@overload
def causal_conv1d_gated(
    B: _Tensor | None,
    x: _Tensor,
    C: _Tensor | None,
    weight: _Tensor,
    bias: _Tensor | None = None,
    seq_idx: _Tensor | None = None,
    initial_states: _Tensor | None = None,
    return_final_states: Literal[False] = False,
    final_states_out: _Tensor | None = None,
    activation: _Activation = None,
    *,
    cu_seqlens: _Tensor | None = None,
    residual: _Tensor | None = None,
    round_products: bool = False,
) -> _Tensor: ...
@overload
def causal_conv1d_gated(
    B: _Tensor | None,
    x: _Tensor,
    C: _Tensor | None,
    weight: _Tensor,
    bias: _Tensor | None = None,
    seq_idx: _Tensor | None = None,
    initial_states: _Tensor | None = None,
    *,
    return_final_states: Literal[True],
    final_states_out: _Tensor | None = None,
    activation: _Activation = None,
    cu_seqlens: _Tensor | None = None,
    residual: _Tensor | None = None,
    round_products: bool = False,
) -> tuple[_Tensor, _Tensor]: ...
@overload
def causal_conv1d_gated(
    B: _Tensor | None,
    x: _Tensor,
    C: _Tensor | None,
    weight: _Tensor,
    bias: _Tensor | None,
    seq_idx: _Tensor | None,
    initial_states: _Tensor | None,
    return_final_states: Literal[True],
    final_states_out: _Tensor | None = None,
    activation: _Activation = None,
    *,
    cu_seqlens: _Tensor | None = None,
    residual: _Tensor | None = None,
    round_products: bool = False,
) -> tuple[_Tensor, _Tensor]: ...
@overload
def causal_conv1d_gated_packed(
    packed: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = None,
    seq_idx: _Tensor | None = None,
    initial_states: _Tensor | None = None,
    return_final_states: Literal[False] = False,
    activation: _Activation = None,
    *,
    order: str = "BCx",
    cu_seqlens: _Tensor | None = None,
    round_products: bool = False,
) -> _Tensor: ...
@overload
def causal_conv1d_gated_packed(
    packed: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = None,
    seq_idx: _Tensor | None = None,
    initial_states: _Tensor | None = None,
    *,
    return_final_states: Literal[True],
    activation: _Activation = None,
    order: str = "BCx",
    cu_seqlens: _Tensor | None = None,
    round_products: bool = False,
) -> tuple[_Tensor, _Tensor]: ...
@overload
def causal_conv1d_gated_packed(
    packed: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None,
    seq_idx: _Tensor | None,
    initial_states: _Tensor | None,
    return_final_states: Literal[True],
    activation: _Activation = None,
    *,
    order: str = "BCx",
    cu_seqlens: _Tensor | None = None,
    round_products: bool = False,
) -> tuple[_Tensor, _Tensor]: ...
@overload
def causal_conv1d_qkv(
    x: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = None,
    seq_idx: _Tensor | None = None,
    initial_states: _Tensor | None = None,
    return_final_states: Literal[False] = False,
    *,
    sizes: Sequence[int],
    head_dim: int | Sequence[int],
    l2norm: _Names = ("q", "k"),
    scale: float = 1.0,
    eps: float = 1e-6,
    activation: _Activation = "silu",
    cu_seqlens: _Tensor | None = None,
) -> tuple[_Tensor, _Tensor, _Tensor]: ...
@overload
def causal_conv1d_qkv(
    x: tuple[_Tensor, _Tensor, _Tensor],
    weight: tuple[_Tensor, _Tensor, _Tensor],
    bias: tuple[_Tensor, _Tensor, _Tensor] | None = None,
    seq_idx: _Tensor | None = None,
    initial_states: tuple[_Tensor, _Tensor, _Tensor] | None = None,
    return_final_states: Literal[False] = False,
    *,
    sizes: None = None,
    head_dim: int | Sequence[int],
    l2norm: _Names = ("q", "k"),
    scale: float = 1.0,
    eps: float = 1e-6,
    activation: _Activation = "silu",
    cu_seqlens: _Tensor | None = None,
) -> tuple[_Tensor, _Tensor, _Tensor]: ...
@overload
def causal_conv1d_qkv(
    x: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = None,
    seq_idx: _Tensor | None = None,
    initial_states: _Tensor | None = None,
    *,
    return_final_states: Literal[True],
    sizes: Sequence[int],
    head_dim: int | Sequence[int],
    l2norm: _Names = ("q", "k"),
    scale: float = 1.0,
    eps: float = 1e-6,
    activation: _Activation = "silu",
    cu_seqlens: _Tensor | None = None,
) -> tuple[tuple[_Tensor, _Tensor, _Tensor], _Tensor]: ...
@overload
def causal_conv1d_qkv(
    x: tuple[_Tensor, _Tensor, _Tensor],
    weight: tuple[_Tensor, _Tensor, _Tensor],
    bias: tuple[_Tensor, _Tensor, _Tensor] | None = None,
    seq_idx: _Tensor | None = None,
    initial_states: tuple[_Tensor, _Tensor, _Tensor] | None = None,
    *,
    return_final_states: Literal[True],
    sizes: None = None,
    head_dim: int | Sequence[int],
    l2norm: _Names = ("q", "k"),
    scale: float = 1.0,
    eps: float = 1e-6,
    activation: _Activation = "silu",
    cu_seqlens: _Tensor | None = None,
) -> tuple[tuple[_Tensor, _Tensor, _Tensor], tuple[_Tensor, _Tensor, _Tensor]]: ...
def causal_conv1d_qkv_update(
    x: _Tensor,
    conv_state: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = None,
    *,
    sizes: Sequence[int],
    head_dim: int | Sequence[int],
    l2norm: _Names = ("q", "k"),
    scale: float = 1.0,
    eps: float = 1e-6,
    activation: _Activation = "silu",
    cache_seqlens: _Tensor | None = None,
    conv_state_indices: _Tensor | None = None,
) -> tuple[_Tensor, _Tensor, _Tensor]: ...
def causal_conv1d_gated_update(
    B: _Tensor | None,
    x: _Tensor,
    C: _Tensor | None,
    conv_state: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = None,
    activation: _Activation = None,
    cache_seqlens: _Tensor | None = None,
    conv_state_indices: _Tensor | None = None,
    *,
    round_products: bool = False,
) -> _Tensor: ...
def causal_conv1d_update(
    x: _Tensor,
    conv_state: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = None,
    activation: _Activation = None,
    cache_seqlens: _Tensor | None = None,
    conv_state_indices: _Tensor | None = None,
) -> _Tensor: ...
def causal_conv1d_varlen_states(x: _Tensor, cu_seqlens: _Tensor, state_len: int) -> _Tensor: ...
def causal_conv1d_ref(
    x: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = None,
    initial_states: _Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: _Tensor | None = None,
    activation: _Activation = None,
    seq_idx: _Tensor | None = None,
) -> _Tensor | tuple[_Tensor, _Tensor]: ...
def causal_conv1d_update_ref(
    x: _Tensor,
    conv_state: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = None,
    activation: _Activation = None,
    cache_seqlens: _Tensor | None = None,
) -> _Tensor: ...
def empty_cache() -> None: ...
def gemm(a: _Tensor, b: _Tensor, *, algorithm: _Algorithm = "fast") -> _Tensor: ...
def gemm_grad_a(grad_c: _Tensor, b: _Tensor, *, algorithm: _Algorithm = "fast") -> _Tensor: ...
def gemm_grad_b(grad_c: _Tensor, a: _Tensor, *, algorithm: _Algorithm = "fast") -> _Tensor: ...
def gemm_grad_ab(
    grad_c: _Tensor, a: _Tensor, b: _Tensor, *, algorithm: _Algorithm = "fast"
) -> tuple[_Tensor, _Tensor]: ...
def install_causal_conv1d() -> drop_in.Installed: ...
def install_lfm3() -> drop_in.lfm3.Replaced: ...
def patch_transformers(model: object) -> drop_in.patched.Patched: ...
def verify(
    random: int | None = None,
    *,
    suite: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    case: str | None = None,
    repeat: int = 1,
    seed: int = 1,
    seconds: float | None = None,
    op: str | Sequence[str] | None = None,
    elements: int | None = None,
    device: object = None,
    threads: int = 0,
    progress: bool | Callable[[int, int, int], object] | None = None,
) -> _verify.Report: ...
