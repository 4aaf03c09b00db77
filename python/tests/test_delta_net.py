"""Models of transformers with gated delta nets, with `patch_transformers` and without."""

import pytest
import torch
from transformers_model import CONFIGS, COMMON

import causeway

transformers = pytest.importorskip("transformers", minversion="5.23")

KINDS = "qwen3_next", "qwen3_5", "qwen3_5_moe"


def _model(kind, **more):
    name, differences = CONFIGS[kind]
    config = getattr(transformers, name)(**(COMMON | differences | more))
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def _tokens(device, batch=2, seqlen=19):
    return torch.randint(2, 97, (batch, seqlen), generator=torch.Generator().manual_seed(1)).to(device)


def _computed(model, tokens, **more):
    """Logits, tokens and gradients."""
    model.zero_grad()
    output = model(input_ids=tokens, labels=tokens, **more)
    output.loss.backward()
    generated = model.generate(tokens, max_new_tokens=12, do_sample=False, **more)
    return output.logits.detach(), generated, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("masked", [False, True])
def test_logits_gradients_and_tokens(kind, masked, device):
    model, tokens = _model(kind).to(device), _tokens(device)
    more = {}
    if masked:
        more["attention_mask"] = torch.ones_like(tokens)
        more["attention_mask"][0, :4] = 0
    expected = _computed(model, tokens, **more)
    with causeway.patch_transformers(model) as patched:
        assert patched.count == 1
        found = _computed(model, tokens, **more)
    assert all("forward" not in vars(module) for module in model.modules())
    torch.testing.assert_close(found[0], expected[0], atol=2e-5, rtol=1e-3)
    assert torch.equal(found[1], expected[1])
    assert found[2].keys() == expected[2].keys() and any("conv1d" in name for name in found[2])
    torch.testing.assert_close(found[2], expected[2], atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_in_parts_and_short_ones(kind, device):
    model, tokens = _model(kind).to(device), _tokens(device)
    short = {n: model.generate(tokens[:, :n], max_new_tokens=6, do_sample=False) for n in (1, 2, 7)}
    with torch.no_grad():
        whole = model(input_ids=tokens).logits
    with causeway.patch_transformers(model), torch.no_grad():
        for n, expected in short.items():
            assert torch.equal(model.generate(tokens[:, :n], max_new_tokens=6, do_sample=False), expected)
        cache = model(input_ids=tokens[:, :9], use_cache=True).past_key_values
        rest = model(input_ids=tokens[:, 9:], past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(rest, whole[:, 9:], atol=2e-4, rtol=1e-3)


def test_under_autocast(device):
    model, tokens = _model("qwen3_5").to(device), _tokens(device)
    with torch.no_grad():
        exact = model(input_ids=tokens).logits
        with torch.autocast(device, torch.bfloat16):
            theirs = model(input_ids=tokens).logits
            with causeway.patch_transformers(model):
                ours = model(input_ids=tokens).logits
                generated = model.generate(tokens, max_new_tokens=4, do_sample=False)
    assert generated.shape == (2, 23)
    # With fewer roundings than the model's own; which way each one falls is chance.
    root_mean_square = lambda error: error.float().square().mean().sqrt()
    assert root_mean_square(ours - exact) < 1.25 * root_mean_square(theirs - exact)


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_layer(kind, device):
    # Without gradients: those of the delta rule in plain PyTorch do not compile, with Causeway or without.
    model = _model(kind).to(device)
    layer = next(module for module in model.modules() if type(module).__name__.endswith("GatedDeltaNet"))
    hidden = torch.randn(2, 19, 32, device=device)
    with torch.no_grad():
        expected = layer(hidden)
        with causeway.patch_transformers(layer):
            found = torch.compile(layer, backend="aot_eager")(hidden)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-3)


def test_its_convolution_is_ours(monkeypatch):
    called = []
    own = causeway.causal_conv1d_qkv
    monkeypatch.setattr(causeway, "causal_conv1d_qkv", lambda *given, **more: called.append(1) or own(*given, **more))
    model = _model("qwen3_5")
    with causeway.patch_transformers(model), torch.no_grad():
        model(input_ids=_tokens("cpu"))
    assert called == [1]


def test_an_activation_that_is_not_ours_is_left_alone():
    with pytest.raises(ValueError, match="without a gated short convolution, or a gated delta net with SiLU"):
        causeway.patch_transformers(_model("qwen3_5", hidden_act="gelu"))


def test_other_caches_are_refused(monkeypatch):
    monkeypatch.delattr(transformers.cache_utils.Cache, "is_recording_past")
    with pytest.raises(RuntimeError, match="transformers is .*: expected 5.23 or later"):
        causeway.patch_transformers(_model("qwen3_5"))


def test_a_forward_pass_with_other_parameters_is_refused(monkeypatch):
    model = _model("qwen3_5")
    kind = next(type(module) for module in model.modules() if type(module).__name__.endswith("GatedDeltaNet"))
    monkeypatch.setattr(kind, "forward", lambda self, hidden_states, memory=None: None)
    with pytest.raises(RuntimeError, match="GatedDeltaNet has the parameter memory, which Causeway does not know"):
        causeway.patch_transformers(model)


def test_a_model_is_patched_once():
    model = _model("qwen3_5")
    with causeway.patch_transformers(model):
        with pytest.raises(RuntimeError, match="model is patched already"):
            causeway.patch_transformers(model)
    with causeway.patch_transformers(model) as patched:
        assert patched.count == 1
    with pytest.raises(TypeError, match="model is a str: expected a torch.nn.Module"):
        causeway.patch_transformers("qwen")


def test_a_forward_pass_that_accelerate_calls():
    # What accelerate makes of a module whose parameters it moves.
    model, tokens = _model("qwen3_5"), _tokens("cpu")
    layer = next(module for module in model.modules() if type(module).__name__.endswith("GatedDeltaNet"))
    layer._hf_hook, layer._old_forward, moved = object(), layer.forward, []
    layer.forward = lambda *given, **more: moved.append(1) or layer._old_forward(*given, **more)
    with torch.no_grad():
        expected, before = model(input_ids=tokens).logits, layer._old_forward
        with causeway.patch_transformers(model):
            assert layer._old_forward != before
            torch.testing.assert_close(model(input_ids=tokens).logits, expected, atol=2e-5, rtol=1e-3)
    assert moved == [1, 1] and layer._old_forward == before


def test_one_tap(device):
    model, tokens = _model("qwen3_5", linear_conv_kernel_dim=1).to(device), _tokens(device)
    with torch.no_grad():
        whole = model(input_ids=tokens).logits
        with causeway.patch_transformers(model):
            cache = model(input_ids=tokens[:, :9], use_cache=True).past_key_values
            rest = model(input_ids=tokens[:, 9:], past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(rest, whole[:, 9:], atol=2e-4, rtol=1e-3)
