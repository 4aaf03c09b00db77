"""The gated convolution: against its composition in PyTorch, gradients, packed projections, decoding, modules and models."""

import importlib

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402

GATES = ["BC", "B", "C", ""]


def draw(*shape, grad=True, dtype=torch.float64, seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype).to(device).requires_grad_(grad)


def composed(B, x, C, weight, bias=None, activation=None, states=None):
    """Separate operations of PyTorch's."""
    product = x if B is None else B * x
    y = causeway.causal_conv1d_ref(product, weight, bias, states, activation=activation)
    return y if C is None else C * y


@pytest.mark.parametrize("gates", ["BC", "B", "C"])  # without gates: test_autograd.py
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("kind", ["plain", "states", "seq_idx", "cu_seqlens"])
def test_gradcheck(gates, activation, kind):
    batch = 1 if kind == "cu_seqlens" else 2
    x, weight, bias = draw(batch, 3, 7), draw(3, 4), draw(3)
    B, C = (draw(batch, 3, 7, seed=seed) if letter in gates else None for seed, letter in ((1, "B"), (2, "C")))
    residual, states, seq_idx, cu_seqlens = draw(batch, 3, 7, seed=3), None, None, None
    if kind == "states":
        states = draw(2, 3, 3)
    if kind == "seq_idx":
        seq_idx = torch.tensor([[0, 0, 1, 1, 1, -1, 2], [0] * 7], dtype=torch.int32)
    if kind == "cu_seqlens":
        cu_seqlens, states = torch.tensor([0, 2, 2, 7]), draw(3, 3, 3)

    def function(B, x, C, weight, bias, states, residual):
        return causeway.causal_conv1d_gated(
            B, x, C, weight, bias, seq_idx, states, True, None, activation,
            cu_seqlens=cu_seqlens, residual=residual,
        )  # fmt: skip

    assert torch.autograd.gradcheck(function, (B, x, C, weight, bias, states, residual))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["channel-last", "channel-first"])
@pytest.mark.parametrize("width", [3, 7])
def test_thirds_of_a_projection_against_a_composition(device, dtype, layout, width):
    batch, seqlen, dim = 2, 65, 32
    if layout == "channel-last":
        packed = draw(batch, seqlen, 3 * dim, dtype=dtype, device=device, grad=False).transpose(1, 2)
    else:
        packed = draw(batch, 3 * dim, seqlen, dtype=dtype, device=device, grad=False)
    weight = draw(dim, width, dtype=torch.float32, device=device)
    dy = draw(batch, dim, seqlen, dtype=dtype, device=device, grad=False, seed=9)

    exact = packed.double().requires_grad_()
    exact_weight = weight.detach().double().requires_grad_()
    B, C, x = exact.chunk(3, 1)
    expected = composed(B, x, C, exact_weight)
    expected.backward(dy.double())

    views = packed.clone().requires_grad_()
    B, C, x = views.chunk(3, 1)
    y = causeway.causal_conv1d_gated(B, x, C, weight)
    y.backward(dy)
    of_views, weight.grad = weight.grad, None

    whole = packed.clone().requires_grad_()
    also = causeway.causal_conv1d_gated_packed(whole, weight, order="BCx")
    also.backward(dy)
    assert torch.equal(y, also) and torch.equal(views.grad, whole.grad)
    torch.testing.assert_close(of_views, weight.grad, atol=1e-4, rtol=1e-4)
    assert also.stride(1) == (1 if layout == "channel-last" else seqlen)

    unit = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    for found, wanted in ((y, expected), (whole.grad, exact.grad), (weight.grad, exact_weight.grad)):
        torch.testing.assert_close(found.double(), wanted, atol=unit * wanted.abs().max().item(), rtol=unit)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("layout", ["channel-last", "channel-first", "odd"])
def test_rounded_products_have_the_bits_of_separate_kernels(device, dtype, activation, layout):
    seqlen = 43 if layout == "odd" else 48

    def made(seed, grad=True):
        t = draw(2, 24, seqlen, dtype=dtype, device=device, grad=False, seed=seed)
        if layout == "channel-last":
            t = t.transpose(1, 2).contiguous().transpose(1, 2)
        return t.requires_grad_(grad)

    B, x, C, dy = made(0), made(1), made(2), made(7, False)
    weight = draw(24, 4, dtype=torch.float32, device=device)
    y, states = causeway.causal_conv1d_gated(
        B, x, C, weight, None, None, None, True, None, activation, round_products=True
    )
    y.backward(dy)
    found = [y, states, *(t.grad for t in (B, x, C, weight))]
    for t in (B, x, C, weight):
        t.grad = None
    product = B * x
    inner, states = causeway.causal_conv1d_fn(product, weight, None, None, None, True, None, activation)
    y = C * inner
    y.backward(dy)
    names = "y", "states", "dB", "dx", "dC"
    for name, one, other in zip(names, found, [y, states, *(t.grad for t in (B, x, C))]):
        if name in ("dB", "dx") and layout == "channel-last" and dtype == torch.float32:
            # Where two threads share a row, which depends on the plan, each has a part of the sum.
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
        else:
            assert torch.equal(one, other), name
    # Which sums are added first is a plan's own affair.
    torch.testing.assert_close(found[-1], weight.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("order", ["BCx", "xCB", "Bx", "xC", "x"])
def test_orders_of_a_packed_projection(order):
    packed, weight = draw(2, len(order) * 4, 9), draw(4, 3)
    of = dict(zip(order, packed.chunk(len(order), 1)))
    found = causeway.causal_conv1d_gated_packed(packed, weight, order=order)
    torch.testing.assert_close(found, composed(of.get("B"), of["x"], of.get("C"), weight))
    assert torch.autograd.gradcheck(
        lambda p, w: causeway.causal_conv1d_gated_packed(p, w, activation="silu", order=order), (packed, weight)
    )
    array = causeway.causal_conv1d_gated_packed(packed.detach().numpy(), weight.detach().numpy(), order=order)
    assert torch.equal(torch.from_numpy(array), found)


def test_states_of_a_packed_projection_go_on():
    packed, weight, states = draw(2, 12, 20), draw(4, 3), draw(2, 4, 2)
    whole, last = causeway.causal_conv1d_gated_packed(packed, weight, None, None, states, True)
    first, between = causeway.causal_conv1d_gated_packed(packed[..., :11], weight, None, None, states, True)
    second, end = causeway.causal_conv1d_gated_packed(packed[..., 11:], weight, None, None, between, True)
    assert torch.equal(whole, torch.cat([first, second], 2)) and torch.equal(last, end)
    sums = [torch.autograd.grad((y.sum() + s.sum()), (packed, weight, states))
            for y, s in ((whole, last), (torch.cat([first, second], 2), end))]  # fmt: skip
    torch.testing.assert_close(*sums)


def test_gradients_of_some():
    B, x, C = (draw(2, 3, 7, grad=False, seed=seed) for seed in (0, 1, 2))
    weight = draw(3, 3, grad=False)
    for wanted in (B, x, C, weight):
        wanted.requires_grad_()
        causeway.causal_conv1d_gated(B, x, C, weight).sum().backward()
        assert [t.grad is not None for t in (B, x, C, weight)] == [t is wanted for t in (B, x, C, weight)]
        wanted.grad = None
        wanted.requires_grad_(False)


def test_transforms():
    B, x, C, weight = *(draw(5, 2, 3, 7, grad=False, seed=seed) for seed in range(3)), draw(3, 3, grad=False)
    one = lambda *a: causeway.causal_conv1d_gated(*a).square().sum()  # noqa: E731
    found = torch.func.vmap(torch.func.grad(one, (0, 1, 2)), (0, 0, 0, None))(B, x, C, weight)
    expected = torch.func.vmap(
        torch.func.grad(lambda *a: composed(*a).square().sum(), (0, 1, 2)), (0, 0, 0, None)
    )(B, x, C, weight)  # fmt: skip
    torch.testing.assert_close(found, expected)


def test_compiled(device):
    packed = draw(2, 24, 33, dtype=torch.float32, device=device)
    weight = draw(8, 3, dtype=torch.float32, device=device)

    def step(packed, weight):
        return causeway.causal_conv1d_gated_packed(packed, weight, activation="silu", round_products=True)

    expected = step(packed, weight)
    wanted = torch.autograd.grad(expected.sum(), (packed, weight))
    found = torch.compile(step, fullgraph=True, backend="aot_eager")(packed, weight)
    assert torch.equal(found, expected)
    dpacked, dweight = torch.autograd.grad(found.sum(), (packed, weight))
    assert torch.equal(dpacked, wanted[0])
    torch.testing.assert_close(dweight, wanted[1], atol=1e-5, rtol=1e-5)


def test_autocast(device):
    kind = torch.device(device).type
    block = causeway.nn.GatedShortConv(16, 3, device=device)
    hidden = torch.randn(2, 12, 16, device=device, requires_grad=True)
    with torch.autocast(kind, torch.bfloat16):
        y, state = block(hidden[:, :9], return_state=True)
        assert y.dtype == state.dtype == torch.bfloat16
        with torch.no_grad():
            steps = [block.step(hidden[:, t : t + 1], state) for t in range(9, 12)]
        whole = block(hidden)
        torch.testing.assert_close(whole[:, :9], y, atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(whole[:, 9:], torch.cat(steps, 1), atol=2e-2, rtol=2e-2)
        # A state of a module that keeps float32.
        new = block.new_state(2)
        assert new.dtype == torch.float32
        with torch.no_grad():
            assert block.step(hidden[:, :1], new).dtype == torch.bfloat16
    y.float().sum().backward()
    assert hidden.grad is not None and block.conv.weight.grad is not None


def test_update(device):
    B, x, C = (draw(2, 5, 6, dtype=torch.float32, grad=False, seed=seed, device=device) for seed in range(3))
    weight = draw(5, 4, dtype=torch.float32, grad=False, device=device)
    expected = composed(B, x, C, weight, None, "silu")
    state = torch.zeros(2, 5, 3, device=device)
    parts = [
        causeway.causal_conv1d_gated_update(B[..., t], x[..., t], C[..., t], state, weight, None, "silu") for t in range(6)
    ]
    torch.testing.assert_close(torch.stack(parts, -1), expected)
    assert torch.equal(state, (B * x)[..., -3:])
    # From a pool, and a row that is left alone.
    pool = torch.zeros(4, 5, 3, device=device)
    rows = torch.tensor([2, -1], dtype=torch.int32, device=device)
    y = causeway.causal_conv1d_gated_update(B, x, C, pool, weight, None, "silu", None, rows)
    torch.testing.assert_close(y[0], expected[0])
    assert not y[1].any() and torch.equal(pool[2], (B * x)[0, :, -3:]) and not pool[[0, 1, 3]].any()


def test_module_loads_checkpoints_and_decodes():
    lfm2 = pytest.importorskip("transformers.models.lfm2")
    config = lfm2.Lfm2Config(hidden_size=16, conv_L_cache=3, num_hidden_layers=1, layer_types=["conv"])
    theirs = importlib.import_module("transformers.models.lfm2.modeling_lfm2").Lfm2ShortConv(config, 0)
    ours = causeway.nn.GatedShortConv(16, 3)
    ours.load_state_dict(theirs.state_dict())
    hidden = torch.randn(2, 11, 16)
    torch.testing.assert_close(ours(hidden), theirs(hidden))
    with torch.no_grad():
        y, state = ours(hidden[:, :7], return_state=True)
        steps = [ours.step(hidden[:, t : t + 1], state) for t in range(7, 11)]
    torch.testing.assert_close(torch.cat([y, *steps], 1), theirs(hidden))


def _model(name):
    transformers = pytest.importorskip("transformers", minversion="5.23")
    if not hasattr(transformers, f"{name}Config"):
        pytest.skip(f"this transformers has no {name}")
    more = {"head_dim": 8} if name == "Lfm3" else {}
    if name == "Lfm2Moe":
        more = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_dense_layers": 1}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, layer_types=["conv", "full_attention", "conv"], bos_token_id=1, eos_token_id=None,
        pad_token_id=0, initializer_range=0.2, **more,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def _computed(model, tokens, **more):
    """Logits, tokens and gradients."""
    model.zero_grad()
    output = model(input_ids=tokens, labels=tokens, **more)
    output.loss.backward()
    generated = model.generate(tokens, max_new_tokens=12, do_sample=False, **more)
    return output.logits.detach(), generated, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ["Lfm2", "Lfm2Moe", "Lfm3"])
def test_models_of_transformers(name, device):
    model = _model(name).to(device)
    tokens = torch.randint(2, 97, (2, 19), generator=torch.Generator().manual_seed(1)).to(device)
    mask = torch.ones_like(tokens)
    mask[0, :4] = 0
    for more in ({}, {"attention_mask": mask}):
        expected = _computed(model, tokens, **more)
        with causeway.patch_transformers(model) as patched:
            assert patched.count == 2
            found = _computed(model, tokens, **more)
            # Prompts shorter than the kernel, and a prompt in two parts.
            for n in (1, 2, 7):
                short = model.generate(tokens[:, :n], max_new_tokens=6, do_sample=False)
                assert short.shape == (2, n + 6)
            cache = model(input_ids=tokens[:, :9], use_cache=True).past_key_values
            rest = model(input_ids=tokens[:, 9:], past_key_values=cache, use_cache=True).logits
        torch.testing.assert_close(found[0], expected[0], atol=2e-5, rtol=1e-3)
        assert torch.equal(found[1], expected[1])
        assert found[2].keys() == expected[2].keys()
        torch.testing.assert_close(found[2], expected[2], atol=2e-5, rtol=1e-3)
        if not more:
            torch.testing.assert_close(rest, expected[0][:, 9:], atol=2e-4, rtol=1e-3)
    assert all("forward" not in vars(module) for module in model.modules())


def test_short_prompts_generate_the_same_tokens():
    model = _model("Lfm3")
    tokens = torch.tensor([[5, 9, 40, 7]])
    for n in (1, 2, 4):
        expected = model.generate(tokens[:, :n], max_new_tokens=12, do_sample=False)
        with causeway.patch_transformers(model):
            assert torch.equal(model.generate(tokens[:, :n], max_new_tokens=12, do_sample=False), expected)


def test_a_model_without_such_a_module():
    with pytest.raises(ValueError, match="model is a Linear without a gated short convolution"):
        causeway.patch_transformers(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: causeway.causal_conv1d_gated_packed(torch.ones(1, 6, 4), torch.ones(2, 3), order="BBx"), ValueError, "order is 'BBx'"),
        (lambda: causeway.causal_conv1d_gated_packed(torch.ones(1, 6, 4), torch.ones(2, 3), order="BC"), ValueError, "order is 'BC'"),
        (lambda: causeway.causal_conv1d_gated_packed(torch.ones(1, 7, 4), torch.ones(2, 3)), ValueError, "packed has shape"),
        (lambda: causeway.causal_conv1d_gated_packed(3, torch.ones(2, 3)), TypeError, "packed is an int"),
        (
            lambda: causeway.causal_conv1d_gated_packed(torch.ones(1, 12, 4), torch.ones(4, 3), order="xB"),
            ValueError,
            r"^packed has shape \(1, 12, 4\): expected \(batch, 2 \* 4, seqlen\), since order 'xB' names 2 parts and weight has shape \(4, 3\)$",
        ),
        (lambda: causeway.causal_conv1d_gated_packed(torch.ones(1, 12, 4), None), TypeError, "^weight is a NoneType"),
        (lambda: causeway.causal_conv1d_gated(torch.ones(1, 2, 3), torch.ones(1, 2, 4), None, torch.ones(2, 3)), ValueError, "B has seqlen 3: expected 4"),
        (lambda: causeway.causal_conv1d_gated(None, torch.ones(1, 2, 4), torch.ones(1, 2, 4).half(), torch.ones(2, 3)), TypeError, "C has dtype"),
        (lambda: causeway.nn.GatedShortConv(4, 3, order="Bx"), ValueError, "order is 'Bx'"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
