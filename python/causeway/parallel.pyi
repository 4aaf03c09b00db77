from typing import Literal, overload

from torch import Tensor
from torch.distributed import ProcessGroup

from causeway import _Activation

__all__ = ["causal_conv1d_fn"]

@overload
def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: Literal[False] = False,
    activation: _Activation = None,
    *,
    cu_seqlens: Tensor | None = None,
    residual: Tensor | None = None,
    group: ProcessGroup | None = None,
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
    activation: _Activation = None,
    cu_seqlens: Tensor | None = None,
    residual: Tensor | None = None,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    return_final_states: Literal[True],
    activation: _Activation = None,
    *,
    cu_seqlens: Tensor | None = None,
    residual: Tensor | None = None,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]: ...
