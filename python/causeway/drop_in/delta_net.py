"""The gated delta nets of models of `transformers`, Qwen3-Next and Qwen3.5, with Causeway's convolution of q, k and v."""

import sys

import torch.nn.functional as F
from torch import cat

import causeway

_MODELS = tuple(f"transformers.models.{name}." for name in ("qwen3_next", "qwen3_5", "qwen3_5_moe"))

CHILD = "conv1d"


def knows(module):
    """Whether `forward` is one for a module."""
    kind = type(module)
    ours = kind.__module__.startswith(_MODELS) and kind.__name__.endswith("GatedDeltaNet")
    return ours and module.activation in ("silu", "swish")


def forward(self, hidden_states, cache=None, attention_mask=None, cache_params=None, **kwargs):
    """The module's own forward pass. The norms of q and k are computed with their convolution, and not by the delta rule."""
    # Until transformers 5.24, the cache is cache_params.
    cache = cache_params if cache is None else cache
    if cache is not None and cache.is_recording_past(self.layer_idx):
        # Such a cache keeps every position, for models that take tokens back.
        return type(self).forward(self, hidden_states, cache, attention_mask, **kwargs)
    own = sys.modules[type(self).__module__]
    hidden_states = own.apply_mask_to_padding_states(hidden_states, attention_mask)
    state = recurrent = None
    if cache is not None:
        state = cache.get_conv_state(self.layer_idx, state_idx=0)
        recurrent = cache.get_recurrent_state(self.layer_idx, state_idx=0)
    x, z, b, a = _projections(self, hidden_states)
    q, k, v = _convolved(self, x, hidden_states.shape[1], state, cache, kwargs.get("seq_idx"))

    is_step = recurrent is not None and hidden_states.shape[1] == 1
    rule = own.torch_recurrent_gated_delta_rule if is_step else own.torch_chunk_gated_delta_rule
    out, recurrent = rule(
        q,
        k,
        v,
        # In f32: in f16, the exponential may be infinite.
        g=-self.A_log.float().exp() * F.softplus(a.float() + self.dt_bias),
        beta=b.sigmoid(),
        initial_state=recurrent,
        output_final_state=cache is not None,
        use_qk_l2norm_in_kernel=False,
        cu_seqlens=kwargs.pop("cu_seq_lens_q", None),
        **kwargs,
    )
    if cache is not None:
        cache.update_recurrent_state(recurrent, self.layer_idx)
    out = self.norm(out.reshape(-1, self.head_v_dim), z.reshape(-1, self.head_v_dim))
    return self.out_proj(out.reshape(*hidden_states.shape[:2], -1))


def _projections(self, hidden_states):
    """q, k and v before the convolution, in one tensor (batch, seqlen, channels) or three; then z, b and a."""
    if not hasattr(self, "in_proj_qkvz"):
        return tuple(part(hidden_states) for part in (self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a))
    # Qwen3-Next, whose projection goes by groups of heads.
    projected = self.in_proj_qkvz(hidden_states), self.in_proj_ba(hidden_states)
    q, k, v, z, b, a = self.fix_query_key_value_ordering(*projected)
    return (q.flatten(2), k.flatten(2), v.flatten(2)), z, b, a


def _convolved(self, x, seqlen, state, cache, seq_idx):
    """q, k and v, (batch, seqlen, heads, head_dim) each, q and k divided by their norms. Changes the cache."""
    sizes, taps = (self.key_dim, self.key_dim, self.value_dim), self.conv_kernel_size
    options = {"head_dim": (self.head_k_dim, self.head_k_dim, self.head_v_dim), "activation": self.activation}
    weight, bias = self.conv1d.weight.squeeze(1), self.conv1d.bias
    separate = type(x) is tuple
    # The cache keeps as many positions as there are taps; it wants no others.
    last = [part[:, -taps:].transpose(1, 2) for part in (x if separate else (x,))] if cache is not None else []
    last = cat(last, 1) if last else None
    if state is not None and seqlen == 1:
        return causeway.causal_conv1d_qkv_update(last, state, weight, bias, sizes=sizes, **options)
    initial_states = None if state is None else state[..., 1:].to(last.dtype)
    if separate:
        x = tuple(part.transpose(1, 2) for part in x)
        split = [None if given is None else given.split(sizes, axis) for given, axis in ((weight, 0), (bias, 0), (initial_states, 1))]
        weight, bias, initial_states = (None if parts is None else tuple(parts) for parts in split)
    else:
        x, options = x.transpose(1, 2), options | {"sizes": sizes}
    results = causeway.causal_conv1d_qkv(x, weight, bias, seq_idx, initial_states, **options)
    if cache is not None:
        cache.update_conv_state(last, self.layer_idx, conv_kernel_size=taps)
    return results
