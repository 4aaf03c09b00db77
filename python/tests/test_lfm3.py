"""LFM3 of `transformers` with Causeway's convolution against its own PyTorch code."""

import importlib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("transformers.models.lfm3", reason="this transformers has no LFM3")

import causeway  # noqa: E402

modeling = importlib.import_module("transformers.models.lfm3.modeling_lfm3")


@pytest.fixture(scope="module")
def config():
    """A small model of LFM3's width."""
    return transformers.Lfm3Config(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        layer_types=["conv", "full_attention", "conv"],
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )


def compute(config, device, **more):
    """Logits, tokens and gradients of a model that is always made alike."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().to(device)
    tokens = torch.randint(2, 97, (2, 19), generator=torch.Generator().manual_seed(1)).to(device)
    output = model(input_ids=tokens, labels=tokens, **more)
    output.loss.backward()
    generated = model.generate(tokens, max_new_tokens=12, do_sample=False)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return output.logits.detach(), generated, gradients


def test_logits_gradients_and_tokens(config, device, monkeypatch):
    calls = []
    for name in ("causal_conv1d_fn", "causal_conv1d_update"):
        count = lambda *a, f=getattr(causeway, name), **k: calls.append(f.__name__) or f(*a, **k)  # noqa: E731
        monkeypatch.setattr(causeway, name, count)
    expected = compute(config, device)
    assert config.conv_L_cache == 7 and not calls
    with causeway.install_lfm3():
        found = compute(config, device)
    assert {"causal_conv1d_fn", "causal_conv1d_update"} == set(calls)
    torch.testing.assert_close(found[0], expected[0], atol=2e-5, rtol=1e-3)
    assert torch.equal(found[1], expected[1])
    assert any("conv" in name for name in found[2])
    torch.testing.assert_close(found[2], expected[2], atol=2e-5, rtol=1e-3)


def test_packed_sequences_stay_apart(config, device):
    conv = modeling.Lfm3ShortConv(config, 0).to(device)
    x = torch.randn(1, 20, 32, generator=torch.Generator().manual_seed(2)).to(device)
    seq_idx = torch.tensor([[0] * 8 + [1] * 12], dtype=torch.int32, device=device)
    with causeway.install_lfm3(), torch.no_grad():
        packed = conv(x, seq_idx=seq_idx, position_ids=None)
        alone = torch.cat([conv(x[:, :8]), conv(x[:, 8:])], dim=1)
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-5)


def test_it_compiles(config, device):
    conv = modeling.Lfm3ShortConv(config, 0).to(device)
    x = torch.randn(2, 20, 32, device=device)
    with causeway.install_lfm3():
        torch._dynamo.reset()
        found = torch.compile(conv, fullgraph=True, backend="aot_eager")(x)
        torch.testing.assert_close(found, conv(x))
    torch._dynamo.reset()


def test_install_and_remove():
    before = modeling.causal_conv1d_fn, modeling.causal_conv1d_update
    installed = causeway.install_lfm3()
    ours = modeling.causal_conv1d_fn
    assert ours is not before[0] and modeling.causal_conv1d_update is not before[1]
    with causeway.install_lfm3():
        assert modeling.causal_conv1d_fn is ours
    assert modeling.causal_conv1d_fn is ours
    installed.remove()
    installed.remove()
    assert (modeling.causal_conv1d_fn, modeling.causal_conv1d_update) == before


def test_another_transformers_is_named(monkeypatch):
    monkeypatch.delattr(modeling, "causal_conv1d_update")
    before = modeling.causal_conv1d_fn
    with pytest.raises(RuntimeError, match="modeling_lfm3 has no causal_conv1d_update: expected"):
        causeway.install_lfm3()
    assert modeling.causal_conv1d_fn is before


@pytest.mark.parametrize("way", ["install_lfm3", "patch_transformers"])
@pytest.mark.parametrize("lengths", [(1,), (6,), (1, 1, 1), (4, 2)])
@pytest.mark.parametrize("trained", ["all", "bias"])
def test_gradients_with_a_cache(config, device, way, lengths, trained):
    """Of tokens after a prompt, in one call or several with one cache."""
    torch.manual_seed(0)
    config = type(config)(**(config.to_dict() | {"conv_bias": True}))
    model = transformers.AutoModelForCausalLM.from_config(config).to(device)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained == "all" or name.endswith("conv.conv.bias"))
    tokens = torch.randint(2, 97, (2, 19), generator=torch.Generator().manual_seed(1)).to(device)

    def gradients():
        model.zero_grad()
        at, loss = 19 - sum(lengths), 0.0
        with torch.no_grad():
            cache = model(input_ids=tokens[:, :at], use_cache=True).past_key_values
        for length in lengths:
            logits = model(input_ids=tokens[:, at : at + length], past_key_values=cache, use_cache=True).logits
            loss, at = loss + logits.square().sum(), at + length
        loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    assert any(name.endswith("conv.conv.bias") for name in expected)
    with causeway.install_lfm3() if way == "install_lfm3" else causeway.patch_transformers(model):
        found = gradients()
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found, expected, atol=5e-4, rtol=1e-3)


@pytest.mark.parametrize("way", ["install_lfm3", "patch_transformers"])
def test_gradients_of_a_prompt_through_the_cache(config, device, way):
    """Nothing requires a gradient but what the cache holds."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).to(device).requires_grad_(False)
    prompt = torch.randn(2, 5, 32, device=device, requires_grad=True)
    token = torch.randn(2, 1, 32, device=device)

    def gradient():
        cache = model(inputs_embeds=prompt, use_cache=True).past_key_values
        logits = model(inputs_embeds=token, past_key_values=cache, use_cache=True).logits
        return torch.autograd.grad(logits.square().sum(), prompt)[0]

    expected = gradient()
    with causeway.install_lfm3() if way == "install_lfm3" else causeway.patch_transformers(model):
        found = gradient()
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)
