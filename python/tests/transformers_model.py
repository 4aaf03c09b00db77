"""Runs small models of `transformers` with random weights, and saves what they compute.

    python transformers_model.py DIRECTORY WAY [--device D] [--modes eager,autocast,compiled] [--seeds DIRECTORY]
                                 [--backend aot_eager] [--kinds mamba,mamba2,…]

WAY says whose convolution the models have: `plain`, that of transformers in PyTorch; `path`, the drop-in, which is on the
path then; `install`, the drop-in, put into sys.modules. LFM3 is given Causeway's by `install_lfm3` in both of the latter.
"""

import argparse
import contextlib
import pathlib

# Of one family each: the name of its configuration, and what differs from `COMMON`.
COMMON = dict(
    vocab_size=97,
    hidden_size=32,
    num_hidden_layers=2,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=0,
    # Of each part of the model so much that its convolution counts.
    initializer_range=0.1,
    # With a tied head, a model of random weights repeats its last token.
    tie_word_embeddings=False,
)
MAMBA = dict(intermediate_size=None, num_attention_heads=None, num_key_value_heads=None)
MAMBA_2 = dict(
    mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=2, mamba_d_state=8, mamba_expand=2, mamba_chunk_size=16
)
SHORT_CONVOLUTION = dict(layer_types=["conv", "full_attention"])
DELTA_NET = dict(
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    layer_types=["linear_attention", "full_attention"],
)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
LATENT_ATTENTION = dict(
    num_local_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    num_key_value_heads=4,
    kv_lora_rank=8,
    qk_rope_head_dim=4,
    qk_nope_head_dim=8,
    v_head_dim=8,
    layer_types=["linear_attention", "full_attention"],
    mlp_layer_types=["dense", "sparse"],
)
INKLING = dict(
    head_dim=8,
    swa_num_attention_heads=4,
    swa_num_key_value_heads=2,
    swa_head_dim=8,
    d_rel=4,
    rel_extent=32,
    n_routed_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    layer_types=["hybrid_sliding", "hybrid"],
)
SHARED = ["mamba", "hybrid", "mamba", "hybrid"]
CONFIGS = {
    "mamba": ("MambaConfig", MAMBA | dict(state_size=8)),
    "mamba2": (
        "Mamba2Config",
        MAMBA | dict(state_size=8, num_heads=8, head_dim=8, expand=2, n_groups=2, chunk_size=16),
    ),
    "falcon_mamba": ("FalconMambaConfig", MAMBA | dict(state_size=8)),
    "jamba": (
        "JambaConfig",
        dict(num_experts=4, mamba_d_state=8, mamba_dt_rank=4, attn_layer_period=2, attn_layer_offset=1),
    ),
    "bamba": ("BambaConfig", MAMBA_2 | dict(attn_layer_indices=[1])),
    "falcon_h1": ("FalconH1Config", MAMBA_2 | dict(mamba_d_ssm=64, head_dim=8)),
    "zamba": (
        "ZambaConfig",
        dict(num_hidden_layers=4, layers_block_type=SHARED, mamba_d_state=8, mamba_dt_rank=4, attention_head_dim=16),
    ),
    "zamba2": (
        "Zamba2Config",
        dict(
            num_hidden_layers=4,
            layers_block_type=SHARED,
            mamba_d_state=8,
            n_mamba_heads=8,
            mamba_ngroups=2,
            chunk_size=16,
            adapter_rank=4,
        ),
    ),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        MAMBA_2 | dict(num_local_experts=4, shared_intermediate_size=16, layer_types=["mamba", "attention"]),
    ),
    "lfm2": ("Lfm2Config", SHORT_CONVOLUTION),
    "lfm2_moe": ("Lfm2MoeConfig", SHORT_CONVOLUTION | EXPERTS | dict(num_dense_layers=1)),
    "qwen3_next": ("Qwen3NextConfig", DELTA_NET | EXPERTS | dict(head_dim=8, shared_expert_intermediate_size=16)),
    "qwen3_5": ("Qwen3_5TextConfig", DELTA_NET | dict(head_dim=8)),
    "qwen3_5_moe": (
        "Qwen3_5MoeTextConfig",
        DELTA_NET | EXPERTS | dict(head_dim=8, shared_expert_intermediate_size=16, intermediate_size=None),
    ),
    "olmo_hybrid": ("OlmoHybridConfig", DELTA_NET),
    "kimi_linear": ("KimiLinearConfig", LATENT_ATTENTION | dict(linear_head_dim=8, linear_num_heads=4)),
    "nemotron_h": (
        "NemotronHConfig",
        dict(
            num_hidden_layers=None,
            layers_block_type=["mamba", "moe", "attention", "mlp"],
            head_dim=8,
            ssm_state_size=8,
            mamba_num_heads=8,
            mamba_head_dim=8,
            n_groups=2,
            chunk_size=16,
            n_routed_experts=4,
            moe_intermediate_size=16,
            moe_shared_expert_intermediate_size=16,
        ),
    ),
    "bailing_hybrid": (
        "BailingHybridConfig",
        LATENT_ATTENTION
        | dict(num_key_value_heads=4, head_dim=8, n_group=1, topk_group=1),
    ),
    "inkling": (
        "InklingTextConfig",
        INKLING | dict(unpadded_vocab_size=97, intermediate_size=64, n_shared_experts=1, mlp_layer_types=["dense", "sparse"]),
    ),
    "inkling2": (
        "Inkling2TextConfig", INKLING | dict(unpadded_vocab_size=97, intermediate_size=None, n_layers_per_attn_res_block=1)
    ),
    "qwen4_exp": (
        "Qwen4ExpTextConfig",
        DELTA_NET
        | EXPERTS
        | dict(
            head_dim=8,
            shared_expert_intermediate_size=16,
            intermediate_size=None,
            hc_count=2,
            hc_lowrank=4,
            indexer_n_heads=2,
            indexer_kv_heads=1,
            indexer_head_dim=8,
            indexer_budget=64,
            indexer_compress_ratio=4,
            layer_types=["linear_attention", "indexed_attention"],
        ),
    ),
    "lfm3": ("Lfm3Config", SHORT_CONVOLUTION | dict(head_dim=8)),
}
MODES = ("eager", "autocast", "compiled")
NEW_TOKENS = 6


def replace_convolution(way):
    """Before transformers is imported, which looks for the package then."""
    if way == "plain":
        return
    import causeway

    if way == "install":
        causeway.install_causal_conv1d()
    # Older versions of transformers have no LFM3.
    with contextlib.suppress(ImportError):
        causeway.install_lfm3()


def has(kind):
    """True if this version of transformers has the family."""
    import transformers

    return hasattr(transformers, CONFIGS[kind][0])


def make(kind, seed, device):
    """A model and a prompt that every run makes alike."""
    name, options = CONFIGS[kind]
    options = {key: value for key, value in (COMMON | options).items() if value is not None or key == "eos_token_id"}
    torch.manual_seed(seed)
    config = getattr(transformers, name)(**options)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().to(device)
    tokens = torch.randint(2, 97, (2, 19), generator=torch.Generator().manual_seed(seed)).to(device)
    return model, tokens


def margin(logits):
    """How far the best of each position is before the second, at least."""
    best = logits.topk(2).values
    return (best[..., 0] - best[..., 1]).min()


def generate(model, tokens):
    """The prompt with what follows, and the margin of these choices in standard deviations of the logits."""
    found = model.generate(
        tokens, max_new_tokens=NEW_TOKENS, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    logits = torch.stack(found.logits).float()
    return found.sequences, (margin(logits) / logits.std()).item()


def eager(model, tokens, backend):
    """Logits, gradients and new tokens."""
    output = model(input_ids=tokens, labels=tokens)
    output.loss.backward()
    result = {"logits": output.logits.detach()}
    with torch.no_grad():
        # Attention may round otherwise where gradients are wanted: what is compared to the last bit has none on either side.
        result["without_residual"] = model(input_ids=tokens).logits
        # A keyword of Causeway's own, which transformers forwards to every function that has it.
        result["with_residual"] = model(input_ids=tokens, residual=torch.ones(2, 1, tokens.shape[1], device=tokens.device)).logits
    result["gradients"] = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    result["tokens"], result["margin"] = generate(model, tokens)
    return result


def autocast(model, tokens, backend):
    """Logits and new tokens, all of it in bfloat16 where autocast has it so. The margin is in units of what that changes."""
    tokens = tokens[:1]
    with torch.no_grad():
        with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
            found = generate(model, tokens)[0]
            logits = model(input_ids=found).logits.float()
        change = (logits - model(input_ids=found).logits)[:, tokens.shape[1] - 1 :].abs().max()
    return {"logits": logits, "tokens": found, "margin": (margin(logits[:, tokens.shape[1] - 1 : -1]) / change).item()}


def compiled(model, tokens, backend):
    """As `eager` less gradients, from a compiled forward. `operators` are Causeway's in its graphs."""
    from torch._dynamo import lookup_backend

    operators = set()

    def record(graph, inputs):
        operators.update(str(node.target) for node in graph.graph.nodes if "causeway" in str(node.target))
        return lookup_backend(backend)(graph, inputs)

    torch._dynamo.reset()
    model.forward = torch.compile(model.forward, backend=record)
    with torch.no_grad():
        result = {"logits": model(input_ids=tokens).logits}
        result["tokens"], result["margin"] = generate(model, tokens)
    result["operators"] = sorted(operators)
    return result


# A choice that is nearer than this may fall otherwise by rounding alone. Under autocast, two programs may each be off by what
# bfloat16 changes.
CLEAR = {"eager": 1e-3, "autocast": 2.0, "compiled": 1e-3}


def compute(kind, mode, device, backend, seed):
    """What a mode gives, of the first model whose choices rounding does not decide, or of the one that a run before took."""
    run = dict(eager=eager, autocast=autocast, compiled=compiled)[mode]
    for attempt in range(100) if seed is None else [seed]:
        result = run(*make(kind, attempt, device), backend)
        if seed is not None or result["margin"] > CLEAR[mode]:
            return result | {"seed": attempt}
    raise RuntimeError(f"{kind}, {mode}: no model of 100 makes clear choices")


def main():
    """Saves what all modes of each kind give, with the number of calls that Causeway had."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("way", choices=["plain", "path", "install"])
    parser.add_argument("--kinds", default=",".join(CONFIGS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--modes", default="eager,autocast")
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--seeds", type=pathlib.Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # On a GPU, PyTorch's own convolution would round its factors.
    torch.backends.cudnn.allow_tf32 = False
    calls = count_calls() if arguments.way != "plain" else {}
    for kind in filter(has, arguments.kinds.split(",")):
        results = {}
        for mode in arguments.modes.split(","):
            seed = torch.load(arguments.seeds / f"{kind}.pt")[mode].get("seed") if arguments.seeds else None
            before = dict(calls)
            try:
                found = compute(kind, mode, arguments.device, arguments.backend, seed)
            except RuntimeError as error:
                # Models of transformers need not work with every PyTorch; the tests ask whether this one does by itself.
                found = {"failed": f"{type(error).__name__}: {error}"[:2000]}
            found["calls"] = {name: count - before[name] for name, count in calls.items()}
            results[mode] = found
        torch.save(results, arguments.directory / f"{kind}.pt")


def count_calls():
    """Counts the calls of Causeway's functions, by name."""
    import functools

    import causeway

    calls = {}

    def counting(name, function):
        calls[name] = 0

        @functools.wraps(function)
        def call(*arguments, **keywords):
            calls[name] += 1
            return function(*arguments, **keywords)

        return call

    for name in ("causal_conv1d_fn", "causal_conv1d_update"):
        setattr(causeway, name, counting(name, getattr(causeway, name)))
    return calls


if __name__ == "__main__":
    import sys

    import torch

    replace_convolution(sys.argv[2])
    import transformers

    main()
