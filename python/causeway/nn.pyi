from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from causeway import _Activation, _Names

__all__ = ["CausalConv1d", "GatedShortConv", "QKVShortConv"]

class CausalConv1d(torch.nn.Conv1d):
    activation: _Activation

    def __init__(
        self,
        channels: int,
        kernel_size: int | tuple[int] | list[int],
        *,
        bias: bool = True,
        activation: _Activation = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None: ...
    @overload  # type: ignore[override]
    def forward(
        self,
        x: Tensor,
        state: Tensor | None = None,
        *,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        residual: Tensor | None = None,
        return_state: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        x: Tensor,
        state: Tensor | None = None,
        *,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        residual: Tensor | None = None,
        return_state: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...
    def step(
        self,
        x: Tensor,
        state: Tensor,
        *,
        cache_seqlens: Tensor | None = None,
        conv_state_indices: Tensor | None = None,
    ) -> Tensor: ...
    def new_state(
        self,
        batch: int,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor: ...
    @staticmethod
    def reset_state(state: Tensor, rows: int | slice | Sequence[int] | Tensor | None = None) -> Tensor: ...

class GatedShortConv(torch.nn.Module):
    in_proj: torch.nn.Linear
    conv: CausalConv1d
    out_proj: torch.nn.Linear
    order: str
    round_products: bool

    def __init__(
        self,
        dim: int,
        kernel_size: int | tuple[int] | list[int],
        *,
        bias: bool = False,
        activation: _Activation = None,
        order: str = "BCx",
        round_products: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None: ...
    @overload
    def forward(
        self,
        hidden: Tensor,
        state: Tensor | None = None,
        *,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        return_state: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        hidden: Tensor,
        state: Tensor | None = None,
        *,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        return_state: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...
    def step(
        self,
        hidden: Tensor,
        state: Tensor,
        *,
        cache_seqlens: Tensor | None = None,
        conv_state_indices: Tensor | None = None,
    ) -> Tensor: ...
    def new_state(
        self,
        batch: int,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor: ...
    @staticmethod
    def reset_state(state: Tensor, rows: int | slice | Sequence[int] | Tensor | None = None) -> Tensor: ...

class QKVShortConv(torch.nn.Module):
    conv: CausalConv1d
    sizes: tuple[int, int, int]

    def __init__(
        self,
        sizes: Sequence[int],
        head_dim: int | Sequence[int],
        kernel_size: int | tuple[int] | list[int],
        *,
        l2norm: _Names = ("q", "k"),
        scale: float = 1.0,
        eps: float = 1e-6,
        activation: _Activation = "silu",
        bias: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None: ...
    @overload
    def forward(
        self,
        packed: Tensor,
        state: Tensor | None = None,
        *,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        return_state: Literal[False] = False,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    @overload
    def forward(
        self,
        packed: Tensor,
        state: Tensor | None = None,
        *,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        return_state: Literal[True],
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]: ...
    def step(
        self,
        packed: Tensor,
        state: Tensor,
        *,
        cache_seqlens: Tensor | None = None,
        conv_state_indices: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def new_state(
        self,
        batch: int,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor: ...
    @staticmethod
    def reset_state(state: Tensor, rows: int | slice | Sequence[int] | Tensor | None = None) -> Tensor: ...
