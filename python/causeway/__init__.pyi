from typing import Literal, TypeVar, overload

Tensor = TypeVar("Tensor")  # torch.Tensor or numpy.ndarray: all of a call alike

__version__: str

_Activation = Literal["silu", "swish"] | None
_Algorithm = Literal["fast", "exact"]

@overload
def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: Literal[False] = False,
    final_states_out: Tensor | None = None,
    activation: _Activation = None,
    *,
    cu_seqlens: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor: ...
@overload
def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    *,
    return_final_states: Literal[True],
    final_states_out: Tensor | None = None,
    activation: _Activation = None,
    cu_seqlens: Tensor | None = None,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: _Activation = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor: ...
def causal_conv1d_varlen_states(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor: ...
def causal_conv1d_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: _Activation = None,
) -> Tensor | tuple[Tensor, Tensor]: ...
def causal_conv1d_update_ref(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: _Activation = None,
    cache_seqlens: Tensor | None = None,
) -> Tensor: ...
def gemm(a: Tensor, b: Tensor, *, algorithm: _Algorithm = "fast") -> Tensor: ...
def gemm_grad_a(grad_c: Tensor, b: Tensor, *, algorithm: _Algorithm = "fast") -> Tensor: ...
def gemm_grad_b(grad_c: Tensor, a: Tensor, *, algorithm: _Algorithm = "fast") -> Tensor: ...
def gemm_grad_ab(
    grad_c: Tensor, a: Tensor, b: Tensor, *, algorithm: _Algorithm = "fast"
) -> tuple[Tensor, Tensor]: ...
