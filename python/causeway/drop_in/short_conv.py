"""The gated short convolutions of models of `transformers`, LFM2 and LFM3, with Causeway's fused operation."""

import sys

import causeway
from causeway._torch.eager import needs_gradient

# What a module has that computes `out_proj(C * conv(B * x))`, with B, C and x the thirds of `in_proj`.
_PARTS = "in_proj", "conv", "out_proj", "layer_idx", "conv_kernel_size"

CHILD = "conv"


def knows(module):
    """Whether `forward` is one for a module."""
    kind = type(module)
    of_transformers = kind.__module__.startswith("transformers.models.lfm")
    return of_transformers and kind.__name__.endswith("ShortConv") and all(hasattr(module, name) for name in _PARTS)


def forward(self, hidden_states, cache=None, attention_mask=None, seq_idx=None, past_key_values=None, **kwargs):
    """The module's own forward pass. Its convolution, both gates and all gradients are one launch each."""
    # Until transformers 5.24, the cache is past_key_values.
    cache = past_key_values if cache is None else cache
    if cache is not None and cache.is_recording_past(self.layer_idx):
        # Such a cache keeps every position, for models that take tokens back.
        return type(self).forward(self, hidden_states, cache, attention_mask, seq_idx=seq_idx, **kwargs)
    hidden_states = sys.modules[type(self).__module__].apply_mask_to_padding_states(hidden_states, attention_mask)
    packed = self.in_proj(hidden_states).transpose(-1, -2)
    weight, bias, state = self.conv.weight.squeeze(1), self.conv.bias, None
    if cache is not None:
        state = cache.get_conv_state(self.layer_idx, state_idx=0)
    is_recorded = needs_gradient(packed, weight, bias, state)
    # An update keeps nothing for a gradient.
    if state is not None and packed.shape[-1] == 1 and not is_recorded:
        B, C, x = packed.chunk(3, dim=-2)
        y = causeway.causal_conv1d_gated_update(B, x, C, state, weight, bias)
    else:
        # A copy where it is kept for a gradient: the cache's own changes below.
        initial_states = None if state is None else state[..., 1:].to(packed.dtype, copy=is_recorded)
        y = causeway.causal_conv1d_gated_packed(packed, weight, bias, seq_idx, initial_states, order="BCx")
        if cache is not None:
            # The cache keeps as many positions as there are taps; it wants no others.
            B, _, x = packed[..., -self.conv_kernel_size :].chunk(3, dim=-2)
            cache.update_conv_state(B * x, self.layer_idx, conv_kernel_size=self.conv_kernel_size)
    return self.out_proj(y.transpose(-1, -2))
