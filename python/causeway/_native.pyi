"""The extension module: the library's calls with all outputs given. See the functions of `causeway` instead."""

from collections.abc import Sequence
from typing import Any

__version__: str

def main(arguments: Sequence[str]) -> int: ...
def causal_conv1d_forward(
    x: Any,
    weight: Any,
    bias: Any | None,
    initial_states: Any | None,
    seq_idx: Any | None,
    cu_seqlens: Any | None,
    residual: Any | None,
    silu: bool,
    y: Any,
    final_states: Any | None,
) -> None: ...
def causal_conv1d_backward(
    x: Any,
    weight: Any,
    bias: Any | None,
    dy: Any,
    initial_states: Any | None,
    seq_idx: Any | None,
    cu_seqlens: Any | None,
    dfinal_states: Any | None,
    silu: bool,
    dx: Any,
    dweight: Any,
    dbias: Any | None,
    dinitial_states: Any | None,
) -> None: ...
def causal_conv1d_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any | None,
    silu: bool,
    cache_seqlens: Any | None,
    conv_state_indices: Any | None,
    out: Any,
) -> None: ...
def causal_conv1d_varlen_states(x: Any, cu_seqlens: Any, states: Any) -> None: ...
def gemm_forward(a: Any, b: Any, algorithm_name: str, c: Any) -> None: ...
def gemm_grad_a(grad_c: Any, b: Any, algorithm_name: str, grad_a: Any) -> None: ...
def gemm_grad_b(grad_c: Any, a: Any, algorithm_name: str, grad_b: Any) -> None: ...
def gemm_grad_ab(grad_c: Any, a: Any, b: Any, algorithm_name: str, grad_a: Any, grad_b: Any) -> None: ...
