"""Runs small models of `transformers` with random weights, and saves what they compute.

    python transformers_model.py DIRECTORY [install]

With the drop-in on the path, or put into sys.modules by `install`, transformers takes its convolution; without it, its
own PyTorch code.
"""

import pathlib
import sys

if sys.argv[2:] == ["install"]:
    import causeway

    causeway.install_causal_conv1d()

import torch
import transformers
from transformers import AutoModelForCausalLM

SMALL = dict(
    vocab_size=97, hidden_size=32, num_hidden_layers=2, bos_token_id=1, eos_token_id=None, pad_token_id=0
)
CONFIGS = {
    "mamba": ("MambaConfig", dict(state_size=8, conv_kernel=4)),
    "falcon_mamba": ("FalconMambaConfig", dict(state_size=8, conv_kernel=4)),
    "mamba2": (
        "Mamba2Config",
        dict(state_size=8, num_heads=8, head_dim=8, expand=2, n_groups=2, chunk_size=16),
    ),
    "lfm2": (
        "Lfm2Config",
        dict(
            intermediate_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            layer_types=["conv", "full_attention"],
            conv_L_cache=3,
        ),
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        dict(
            intermediate_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            layer_types=["linear_attention", "full_attention"],
        ),
    ),
}


def compute(kind):
    """Logits, gradients and tokens of a model that both runs make alike."""
    name, options = CONFIGS[kind]
    config = getattr(transformers, name)(**SMALL, **options)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.randint(2, 97, (2, 19), generator=torch.Generator().manual_seed(1))
    output = model(input_ids=tokens, labels=tokens)
    output.loss.backward()
    generated = model.generate(tokens, max_new_tokens=12, do_sample=False)
    result = {"logits": output.logits.detach(), "tokens": generated}
    result |= {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    result["used"] = torch.tensor("causeway" in sys.modules)
    return result


if __name__ == "__main__":
    for kind in CONFIGS:
        torch.save(compute(kind), pathlib.Path(sys.argv[1]) / f"{kind}.pt")
