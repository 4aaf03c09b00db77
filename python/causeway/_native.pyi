"""The extension module: the library's calls with all outputs given, and whole calls of PyTorch's tensors.

See the functions of `causeway` instead.
"""

from collections.abc import Callable, Sequence
from typing import Any

__version__: str

def main(arguments: Sequence[str]) -> int: ...
def verify(
    suites: Sequence[str],
    case: str | None,
    repeats: int,
    random: int | None,
    seed: int,
    seconds: float | None,
    operations: Sequence[str],
    elements: int | None,
    device: str,
    threads: int,
    progress: Callable[[int, int, int], object] | None,
) -> tuple[str, list[tuple[str, list[str]]]]: ...
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
def eager_forward_out(
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
) -> bool: ...
def eager_backward_out(
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
) -> bool: ...
def eager_update_out(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any | None,
    silu: bool,
    cache_seqlens: Any | None,
    conv_state_indices: Any | None,
    out: Any,
) -> bool: ...
def causal_conv1d_varlen_states(x: Any, cu_seqlens: Any, states: Any) -> None: ...
def torch_forward(
    x: Any,
    weight: Any,
    bias: Any | None,
    initial_states: Any | None,
    seq_idx: Any | None,
    cu_seqlens: Any | None,
    residual: Any | None,
    silu: bool,
    wants_states: bool,
    final_states_out: Any | None,
) -> Any: ...
def torch_backward(
    x: Any,
    weight: Any,
    bias: Any | None,
    initial_states: Any | None,
    seq_idx: Any | None,
    cu_seqlens: Any | None,
    dy: Any,
    dfinal_states: Any | None,
    silu: bool,
) -> tuple[Any, Any, Any | None, Any | None]: ...
def eager_backward(
    x: Any,
    weight: Any,
    bias: Any | None,
    initial_states: Any | None,
    seq_idx: Any | None,
    cu_seqlens: Any | None,
    dy: Any,
    dfinal_states: Any | None,
    silu: bool,
) -> tuple[Any, Any, Any | None, Any | None] | None: ...
def torch_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any | None,
    silu: bool,
    cache_seqlens: Any | None,
    conv_state_indices: Any | None,
) -> Any: ...
def eager_forward_alone(
    x: Any,
    weight: Any,
    bias: Any | None,
    seq_idx: Any | None,
    initial_states: Any | None,
    final_states_out: Any | None,
    silu: bool,
) -> Any: ...
def eager_update_alone(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any | None,
    silu: bool,
    cache_seqlens: Any | None,
    conv_state_indices: Any | None,
) -> Any: ...
def eager_forward(
    x: Any,
    weight: Any,
    bias: Any | None,
    seq_idx: Any | None,
    initial_states: Any | None,
    return_final_states: bool,
    final_states_out: Any | None,
    activation: str | None,
    cu_seqlens: Any | None,
    residual: Any | None,
    is_cast: bool,
) -> Any: ...
def eager_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any | None,
    activation: str | None,
    cache_seqlens: Any | None,
    conv_state_indices: Any | None,
    is_cast: bool,
) -> Any: ...
def gemm_forward(a: Any, b: Any, algorithm_name: str, c: Any) -> None: ...
def gemm_grad_a(grad_c: Any, b: Any, algorithm_name: str, grad_a: Any) -> None: ...
def gemm_grad_b(grad_c: Any, a: Any, algorithm_name: str, grad_b: Any) -> None: ...
def gemm_grad_ab(grad_c: Any, a: Any, b: Any, algorithm_name: str, grad_a: Any, grad_b: Any) -> None: ...
