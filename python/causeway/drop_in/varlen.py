"""`causal_conv1d.causal_conv1d_varlen`: states of packed sequences."""

import torch

from causeway import causal_conv1d_varlen_states

__all__ = ["causal_conv1d_varlen_states", "causal_conv1d_varlen_states_ref"]


def causal_conv1d_varlen_states_ref(
    x: torch.Tensor, cu_seqlens: torch.Tensor, state_len: int
) -> torch.Tensor:
    """`causal_conv1d_varlen_states` in plain operations: (n, dim, state_len), zeros before short sequences."""
    ends = cu_seqlens.tolist()
    states = x.new_zeros(len(ends) - 1, state_len, x.shape[1])
    for row, (start, end) in enumerate(zip(ends, ends[1:])):
        kept = min(end - start, state_len)
        states[row, state_len - kept :] = x[end - kept : end]
    return states.transpose(1, 2)
