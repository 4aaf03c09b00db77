"""Eager calls of packed tensors make no views of PyTorch's: they give the bits of those that do, and are taken where they can be."""

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402
from causeway._torch import packed as short  # noqa: E402

# Before PyTorch 2.10, tensors are read by their attributes, and every call makes views.
pytestmark = pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="PyTorch before 2.10")

DIM, SIZES, HEADS = 16, (16, 16, 32), (8, 8, 16)


def draw(*shape, dtype=torch.float32, seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


def gated(tensors, order="BCx"):
    packed, weight, bias, states, seq_idx, cu_seqlens = tensors
    return causeway.causal_conv1d_gated_packed(
        packed, weight, bias, seq_idx, states, activation="silu", order=order, cu_seqlens=cu_seqlens
    )


def one(tensors):
    x, weight, bias, states, seq_idx, cu_seqlens = tensors
    return causeway.causal_conv1d_qkv(
        x, weight, bias, seq_idx, states, sizes=SIZES, head_dim=HEADS, scale=0.5, cu_seqlens=cu_seqlens
    )


def three(tensors):
    x, weight, bias, states, seq_idx, cu_seqlens = tensors

    def of(tensor, axis):
        return None if tensor is None else tensor.split(SIZES, axis)

    given = of(x, 1), of(weight, 0), of(bias, 0), seq_idx, of(states, 1)
    return causeway.causal_conv1d_qkv(*given, head_dim=HEADS, l2norm=(), cu_seqlens=cu_seqlens)


CALLS = {
    "gated": (gated, 3 * DIM, DIM),
    "one gate": (lambda tensors: gated(tensors, "xC"), 2 * DIM, DIM),
    "one projection": (one, sum(SIZES), sum(SIZES)),
    "three tensors": (three, sum(SIZES), sum(SIZES)),
}


class Spy:
    """Counts the calls that the short way answers; closed, it answers none."""

    def __init__(self, monkeypatch, is_open=True):
        self.answered = 0
        for kind in (short.PackedCalls, short.PackedSteps):
            monkeypatch.setattr(kind, "__call__", self.around(kind.__call__, is_open))

    def around(self, function, is_open):
        def call(*arguments):
            found = function(*arguments) if is_open else None
            self.answered += found is not None
            return found

        return call


def gradients_of(results, given, gradients):
    results = results if isinstance(results, tuple) else (results,)
    # Of values, of one value everywhere, and in an order of their own.
    kinds = {
        "dense": lambda at, y: draw(*y.shape, dtype=y.dtype, seed=at, device=y.device),
        "expanded": lambda at, y: torch.ones((), dtype=y.dtype, device=y.device).expand(y.shape),
        "turned": lambda at, y: draw(*reversed(y.shape), dtype=y.dtype, seed=at, device=y.device).permute(*range(y.ndim)[::-1]),
    }
    dys = [kinds[gradients](at, y) for at, y in enumerate(results)]
    return results, torch.autograd.grad(results, given, dys, retain_graph=True)


@pytest.mark.parametrize("gradients", ["dense", "expanded", "turned"])
@pytest.mark.parametrize("option", ["plain", "bias", "states", "seq_idx", "cu_seqlens"])
@pytest.mark.parametrize("layout", ["channel-last", "channel-first"])
@pytest.mark.parametrize("kind", CALLS)
def test_both_ways_give_the_same_bits(kind, layout, option, gradients, device, monkeypatch):
    call, channels, dim = CALLS[kind]
    batch, dtype = 1 if option == "cu_seqlens" else 2, torch.bfloat16
    x = draw(batch, channels, 9, dtype=dtype, device=device)
    if layout == "channel-last":
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    weight = draw(dim, 4, device=device)
    bias = None if option == "plain" else draw(dim, device=device)
    states = draw(batch, dim, 3, dtype=dtype, device=device) if option == "states" else None
    seq_idx = cu_seqlens = None
    if option == "seq_idx":
        seq_idx = torch.tensor([[0, 0, 1, 1, -1, 2, 2, 2, 3]] * 2, dtype=torch.int32, device=device)
    if option == "cu_seqlens":
        cu_seqlens = torch.tensor([0, 2, 2, 9], dtype=torch.int32, device=device)
    given = [tensor.requires_grad_() for tensor in (x, weight, bias, states) if tensor is not None]
    tensors = x, weight, bias, states, seq_idx, cu_seqlens

    with monkeypatch.context() as patch:
        opened = Spy(patch)
        found = gradients_of(call(tensors), given, gradients)
        with torch.no_grad():
            alone = call(tensors)
    assert opened.answered == 2
    with monkeypatch.context() as patch:
        Spy(patch, is_open=False)
        expected = gradients_of(call(tensors), given, gradients)
        with torch.no_grad():
            expected_alone = call(tensors)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(alone, expected_alone, rtol=0, atol=0)
    for y, other in zip(found[0], expected[0]):
        assert y.stride() == other.stride() and y.dtype == other.dtype


@pytest.mark.parametrize("axes", [2, 3])
def test_steps(axes, device, monkeypatch):
    x = draw(*(3, sum(SIZES), 2)[:axes], device=device)
    weight, bias = draw(sum(SIZES), 4, device=device), draw(sum(SIZES), device=device)
    states = [draw(3, sum(SIZES), 5, device=device) for _ in range(2)]
    cache_seqlens = torch.tensor([0, 4, 7], dtype=torch.int32, device=device)

    def step(state):
        return causeway.causal_conv1d_qkv_update(
            x, state, weight, bias, sizes=SIZES, head_dim=HEADS, cache_seqlens=cache_seqlens
        )

    with monkeypatch.context() as patch:
        opened, before = Spy(patch), states[0]._version
        found = step(states[0])
    assert opened.answered == 1
    assert states[0]._version > before, "autograd is told of a state that has changed"
    with monkeypatch.context() as patch:
        Spy(patch, is_open=False)
        expected = step(states[1])
    torch.testing.assert_close((found, states[0]), (expected, states[1]), rtol=0, atol=0)


@pytest.mark.parametrize("kind", CALLS)
def test_a_weight_alone_may_require_a_gradient(kind, monkeypatch):
    call, channels, dim = CALLS[kind]
    x, weight = draw(2, channels, 9), draw(dim, 4).requires_grad_()
    opened = Spy(monkeypatch)
    results, (found,) = gradients_of(call((x, weight, None, None, None, None)), [weight], "dense")
    assert opened.answered == 1
    assert found.shape == weight.shape


@pytest.mark.parametrize("kind", CALLS)
def test_autocast_casts_first(kind, monkeypatch):
    call, channels, dim = CALLS[kind]
    x, weight = draw(2, channels, 9).requires_grad_(), draw(dim, 4)
    with torch.autocast("cpu", torch.bfloat16):
        results = call((x, weight, None, None, None, None))
    results = results if isinstance(results, tuple) else (results,)
    assert all(y.dtype == torch.bfloat16 for y in results)
    sum(y.float().sum() for y in results).backward()
    assert x.grad.dtype == torch.float32


@pytest.mark.parametrize("kind", CALLS)
def test_gradcheck(kind):
    call, channels, dim = CALLS[kind]
    x, weight, bias = (draw(*shape, dtype=torch.float64).requires_grad_() for shape in ((2, channels, 3), (dim, 3), (dim,)))
    options = dict(fast_mode=True)
    assert torch.autograd.gradcheck(lambda *given: call((*given, None, None, None)), (x, weight, bias), **options)


def test_parts_that_a_tensor_lacks_are_left_to_views(monkeypatch):
    opened = Spy(monkeypatch)
    weight = draw(DIM, 4)
    # Rows that share memory have no order that a result could have.
    y = causeway.causal_conv1d_gated_packed(draw(1, 3 * DIM, 9).expand(2, -1, -1), weight)
    assert y.shape == (2, DIM, 9)
    with pytest.raises(ValueError, match="packed has shape"):
        causeway.causal_conv1d_gated_packed(draw(2, 3 * DIM + 1, 9), weight)
    with pytest.raises(ValueError, match="x has shape .*: expected 64 channels along its second axis"):
        causeway.causal_conv1d_qkv(draw(2, 65, 9), draw(65, 4), sizes=SIZES, head_dim=HEADS)
    with pytest.raises(ValueError, match=r"q has 16 channels \(sizes\[0\]\): expected a multiple of head_dim, 6"):
        causeway.causal_conv1d_qkv(draw(2, 64, 9), draw(64, 4), sizes=SIZES, head_dim=(6, 8, 16))
    assert opened.answered == 0


def test_descriptions_that_fit_no_operation_are_refused():
    forward = causeway._native.causal_conv1d_forward
    for calls, words in [
        ([], "expected 1 to 3"),
        ([(False, [0, 1], ["old"])], "is no part of a tensor"),
        ([(False, [(0, "hats")], ["new"])], "is no part of a tensor"),
        ([(False, [None] * 20, ["new"])], "at most"),
    ]:
        with pytest.raises(ValueError, match=words):
            causeway._native.Packed(forward, calls)
