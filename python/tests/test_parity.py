"""Values and gradients against plain PyTorch in float64, for every property, layout and dtype."""

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402

KINDS = ["plain", "no-bias", "states", "short-states", "seq_idx", "cu_seqlens"]
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = [(F32, F32), (F16, F16), (BF16, BF16), (F16, F32), (BF16, F32), (F32, BF16), (BF16, F16)]


def laid_out(tensor, layout):
    """The same values in another memory order: channel-last, or every other element of a larger tensor."""
    if layout == "channel-last":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "strided":
        larger = tensor.new_zeros(*tensor.shape[:2], 2 * tensor.shape[2] + 1)
        larger[:, :, 1::2] = tensor
        return larger[:, :, 1::2]
    return tensor


def call(t, silu):
    """(y, final_states) of a case's tensors."""
    return causeway.causal_conv1d_fn(
        t["x"],
        t["weight"],
        t.get("bias"),
        t.get("seq_idx"),
        t.get("initial_states"),
        True,
        activation="silu" if silu else None,
        cu_seqlens=t.get("cu_seqlens"),
        residual=t.get("residual"),
    )


@pytest.mark.parametrize("silu", [False, True], ids=["none", "silu"])
@pytest.mark.parametrize("dtypes", DTYPES, ids=lambda d: "-".join(str(x).removeprefix("torch.") for x in d))
@pytest.mark.parametrize("layout", ["channel-first", "channel-last", "strided"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_within_their_bounds(parity, device, kind, layout, dtypes, silu):
    tensors = parity.make(kind, layout, *dtypes, seed=len(kind) + 7 * silu)
    t = {name: value.to(device) for name, value in tensors.items()}
    for name in ("x", "dy"):
        t[name] = laid_out(t[name], layout)
    leaves = [name for name in parity.DIFFERENTIABLE if name in t]
    for name in leaves:
        t[name].requires_grad_()
    y, final_states = call(t, silu)
    outputs, gradients = [y], [t["dy"]]
    if "dfinal_states" in t:
        outputs, gradients = [y, final_states], [t["dy"], t["dfinal_states"]]
    found = torch.autograd.grad(outputs, [t[name] for name in leaves], gradients)
    found = {"d" + name: value.cpu() for name, value in zip(leaves, found)}
    assert parity.check(f"{kind} {layout}", found, tensors, silu)


@pytest.mark.parametrize("silu", [False, True], ids=["none", "silu"])
@pytest.mark.parametrize("layout", ["channel-first", "channel-last", "strided"])
@pytest.mark.parametrize("kind", KINDS)
def test_float64_on_a_cpu(parity, kind, layout, silu):
    t = parity.make(kind, layout, torch.float64, torch.float64, seed=len(kind) + 7 * silu)
    t["x"], t["dy"] = laid_out(t["x"], layout), laid_out(t["dy"], layout)
    expected = parity.gradients(t, silu)
    leaves = [name for name in parity.DIFFERENTIABLE if name in t]
    for name in leaves:
        t[name].requires_grad_()
    y, final_states = call(t, silu)
    loss = (y * t["dy"]).sum()
    if "dfinal_states" in t:
        loss = loss + (final_states * t["dfinal_states"]).sum()
    found = torch.autograd.grad(loss, [t[name] for name in leaves])
    truth, _ = parity.reference(t, silu)
    torch.testing.assert_close(y, truth, rtol=1e-13, atol=1e-13)
    for name, gradient in zip(leaves, found):
        torch.testing.assert_close(gradient, expected["d" + name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("silu", [False, True], ids=["none", "silu"])
@pytest.mark.parametrize("dtypes", DTYPES, ids=lambda d: "-".join(str(x).removeprefix("torch.") for x in d))
@pytest.mark.parametrize("layout", ["channel-first", "channel-last", "strided"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_within_their_bounds(parity, device, kind, layout, dtypes, silu):
    tensors = parity.make(kind, layout, *dtypes, seed=len(kind) + 7 * silu)
    tensors["residual"] = tensors.pop("dy")
    t = {name: value.to(device) for name, value in tensors.items()}
    t["x"] = laid_out(t["x"], layout)
    y, final_states = call(t, silu)
    wide = {name: v.double() if v.is_floating_point() else v for name, v in tensors.items()}
    truth, states = parity.reference(wide, silu)
    # Every term at its magnitude: what the errors of the sum are proportional to.
    sizes = {name: v.abs() if v.is_floating_point() else v for name, v in wide.items()}
    magnitude, _ = parity.reference(sizes, False)
    terms = tensors["weight"].shape[1] + 12
    unit = parity.UNIT[dtypes[0]]
    bound = (parity.UNIT[F32] * terms + (unit / 8 if silu else 0)) * magnitude + unit * truth.abs()
    error = (y.detach().cpu().double() - truth).abs()
    assert (error <= bound + parity.TINY[dtypes[0]]).all()
    assert y.dtype == dtypes[0] and y.shape == tensors["x"].shape
    if states is not None:
        assert torch.equal(final_states.cpu().double(), states)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 9, 64, 256])
def test_every_width(device, width):
    generator = torch.Generator().manual_seed(width)
    x, weight = torch.rand(2, 5, 300, generator=generator), torch.rand(5, width, generator=generator) / width
    x, weight = x.to(device).requires_grad_(), weight.to(device).requires_grad_()
    y = causeway.causal_conv1d_fn(x, weight)
    x64, weight64 = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    truth = causeway.causal_conv1d_ref(x64, weight64)
    torch.testing.assert_close(y.double(), truth, atol=1e-5, rtol=1e-5)
    found = torch.autograd.grad(y.sum(), (x, weight))
    expected = torch.autograd.grad(truth.sum(), (x64, weight64))
    for a, b in zip(found, expected):
        torch.testing.assert_close(a.double(), b, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("silu", [False, True], ids=["none", "silu"])
@pytest.mark.parametrize("states", [False, True], ids=["no-states", "states"])
@pytest.mark.parametrize("width", [1, 2, 4, 7])
def test_the_reference_takes_seq_idx(width, states, silu):
    generator = torch.Generator().manual_seed(width)

    def draw(*shape):
        return (torch.rand(*shape, generator=generator, dtype=torch.float64) - 0.5).requires_grad_()

    # An index that comes back, padding in front, between and behind, and a row that ends in the middle of a run.
    rows = [[0] * 5 + [1] + [-1] * 2 + [0] * 4 + [-2] * 3 + [7] * 6, [-1] * 2 + [3] * 12 + [4] * 6 + [-5]]
    seq_idx = torch.tensor(rows, dtype=torch.int32)
    x, weight, bias = draw(2, 3, 21), draw(3, width), draw(3)
    with torch.no_grad():
        # What padding holds goes nowhere.
        x.masked_fill_((seq_idx < 0)[:, None], float("nan"))
    leaves = [x, weight, bias] + ([draw(2, 3, width - 1)] if states else [])
    initial_states = leaves[3] if states else None
    activation = "silu" if silu else None
    found, final = causeway.causal_conv1d_ref(
        x, weight, bias, initial_states=initial_states, return_final_states=True, activation=activation, seq_idx=seq_idx
    )
    expected, expected_final = causeway.causal_conv1d_fn(
        x, weight, bias, seq_idx, initial_states, return_final_states=True, activation=activation
    )
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    assert torch.equal(final, expected_final)
    assert not found.masked_select((seq_idx < 0)[:, None]).any()
    dy = torch.rand(2, 3, 21, generator=generator, dtype=torch.float64)
    for a, b in zip(torch.autograd.grad(found, leaves, dy), torch.autograd.grad(expected, leaves, dy)):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(0, 4, 8), (2, 0, 8), (2, 4, 0), (1, 1, 1)])
def test_empty_and_tiny(device, shape):
    x = torch.ones(shape, device=device, requires_grad=True)
    weight = torch.ones(shape[1], 4, device=device, requires_grad=True)
    bias = torch.ones(shape[1], device=device, requires_grad=True)
    y, final_states = causeway.causal_conv1d_fn(x, weight, bias, return_final_states=True, activation="silu")
    assert y.shape == x.shape and final_states.shape == (shape[0], shape[1], 3)
    y.sum().backward()
    assert x.grad.shape == x.shape
    if y.numel() == 0:
        assert not weight.grad.any() and not bias.grad.any()


def test_the_output_has_the_layout_of_x(device):
    channel_last = torch.rand(2, 16, 8, device=device).transpose(1, 2)
    weight = torch.rand(8, 4, device=device)
    assert causeway.causal_conv1d_fn(channel_last, weight).stride() == channel_last.stride()
    assert causeway.causal_conv1d_fn(channel_last.contiguous(), weight).is_contiguous()


def test_results_are_the_same_bits_every_time(device):
    torch.manual_seed(0)
    x = torch.randn(4, 96, 700, device=device, requires_grad=True)
    weight = torch.randn(96, 4, device=device, requires_grad=True)
    bias = torch.randn(96, device=device, requires_grad=True)
    dy = torch.randn_like(x)
    runs = []
    for _ in range(5):
        y = causeway.causal_conv1d_fn(x, weight, bias, activation="silu")
        runs.append((y, *torch.autograd.grad(y, (x, weight, bias), dy)))
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("call", ["forward", "update"])
def test_silu_of_minus_infinity_is_its_limit_or_no_number(device, dtype, call):
    """Not infinite, whichever it is; and no other position takes part."""
    x = torch.ones(2, 40, 37, device=device, dtype=dtype)
    x[1, 3, 5] = float("-inf")
    weight = torch.ones(40, 1, device=device, dtype=dtype)
    if call == "forward":
        y = causeway.causal_conv1d_fn(x, weight, activation="silu")
    else:
        y = causeway.causal_conv1d_update(x, x.new_zeros(2, 40, 0), weight, activation="silu")
    found = y[1, 3, 5]
    assert found == 0 or found.isnan()
    y[1, 3, 5] = y[0, 0, 0]
    torch.testing.assert_close(y, torch.nn.functional.silu(torch.ones_like(y)))
