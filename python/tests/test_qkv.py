"""Query, key and value with norms: against their composition in PyTorch, gradients, decoding, modules, NumPy and compilers."""

import re

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402

SIZES, HEADS = (12, 12, 20), (4, 4, 10)
CHANNELS = sum(SIZES)


def draw(*shape, grad=True, dtype=torch.float64, seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype).to(device).requires_grad_(grad)


def composed(x, weight, bias=None, states=None, *, l2norm=("q", "k"), scale=1.0, eps=1e-6, activation="silu"):
    """Separate operations of PyTorch's."""
    y = causeway.causal_conv1d_ref(x, weight, bias, states, activation=activation).transpose(1, 2)
    results = []
    for name, part, head_dim in zip("qkv", y.split(SIZES, -1), HEADS):
        u = part.unflatten(-1, (-1, head_dim))
        if name in l2norm:
            u = u * torch.rsqrt(u.square().sum(-1, keepdim=True) + eps) * (scale if name == "q" else 1.0)
        results.append(u)
    return tuple(results)


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("kind", ["plain", "states", "seq_idx", "cu_seqlens", "three"])
def test_gradcheck(activation, kind):
    batch = 1 if kind == "cu_seqlens" else 2
    x, weight, bias = draw(batch, CHANNELS, 5), draw(CHANNELS, 3), draw(CHANNELS)
    states, seq_idx, cu_seqlens = None, None, None
    if kind == "states":
        states = draw(2, CHANNELS, 2)
    if kind == "seq_idx":
        seq_idx = torch.tensor([[0, 0, 1, -1, 1], [0] * 5], dtype=torch.int32)
    if kind == "cu_seqlens":
        cu_seqlens, states = torch.tensor([0, 2, 2, 5]), draw(3, CHANNELS, 2)

    def function(x, weight, bias, states):
        given, sizes = (x, weight, bias, seq_idx, states), SIZES
        if kind == "three":
            given = (x.split(SIZES, 1), weight.split(SIZES), bias.split(SIZES), seq_idx, None)
            sizes = None
        results, finals = causeway.causal_conv1d_qkv(
            *given, True, sizes=sizes, head_dim=HEADS, scale=0.5, eps=0.25, activation=activation, cu_seqlens=cu_seqlens
        )
        return (*results, *(finals if kind == "three" else (finals,)))

    assert torch.autograd.gradcheck(function, (x, weight, bias, states))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["channel-last", "channel-first"])
@pytest.mark.parametrize("l2norm", [("q", "k"), ("k",), ()])
def test_against_a_composition(device, dtype, layout, l2norm):
    scale = 0.5 if "q" in l2norm else 1.0
    if layout == "channel-last":
        packed = draw(2, 65, CHANNELS, dtype=dtype, device=device, grad=False).transpose(1, 2)
    else:
        packed = draw(2, CHANNELS, 65, dtype=dtype, device=device, grad=False)
    packed = packed.detach().requires_grad_()
    weight = draw(CHANNELS, 4, dtype=torch.float32, device=device)
    results = causeway.causal_conv1d_qkv(packed, weight, sizes=SIZES, head_dim=HEADS, l2norm=l2norm, scale=scale)
    assert all(result.is_contiguous() and result.dtype == dtype for result in results)
    found = torch.autograd.grad(results, (packed, weight), [torch.cos(r.detach().float()).to(dtype) for r in results])
    exact = [t.detach().double().requires_grad_() for t in (packed, weight)]
    truth = composed(*exact, l2norm=l2norm, scale=scale)
    wanted = torch.autograd.grad(truth, exact, [torch.cos(r.detach().float()).to(dtype).double() for r in results])
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 2e-4, "atol": 2e-5}
    for one, other in zip((*results, *found), (*truth, *wanted)):
        torch.testing.assert_close(one.double(), other, **tolerance)
    # The same bits where nobody records a gradient.
    with torch.no_grad():
        again = causeway.causal_conv1d_qkv(packed, weight, sizes=SIZES, head_dim=HEADS, l2norm=l2norm, scale=scale)
    assert all(torch.equal(one, other) for one, other in zip(results, again))


def test_decoding_has_the_bits_of_the_whole_sequence(device):
    x, weight = draw(2, CHANNELS, 9, dtype=torch.float32, grad=False, device=device), None
    weight = draw(CHANNELS, 4, dtype=torch.float32, grad=False, device=device)
    options = {"sizes": SIZES, "head_dim": HEADS, "scale": 0.5}
    whole = causeway.causal_conv1d_qkv(x, weight, **options)
    for state_len in (3, 5):
        state = torch.zeros(2, CHANNELS, state_len, device=device)
        pieces = [causeway.causal_conv1d_qkv_update(x[..., t], state, weight, **options) for t in range(7)]
        last = causeway.causal_conv1d_qkv_update(x[..., 7:], state, weight, **options)
        for result, rest, *steps in zip(whole, last, *pieces):
            assert torch.equal(torch.cat((torch.stack(steps, 1), rest), 1), result)
        assert torch.equal(state, x[..., -state_len:])


def test_module(device):
    conv = causeway.nn.QKVShortConv(SIZES, HEADS, 4, scale=0.5, bias=True, device=device)
    packed = draw(2, 12, CHANNELS, dtype=torch.float32, grad=False, device=device)
    with torch.no_grad():
        whole = conv(packed)
        first, state = conv(packed[:, :8], return_state=True)
        second = conv.step(packed[:, 8:], state)
    for result, *parts in zip(whole, first, second):
        assert torch.equal(torch.cat(parts, 1), result)
    assert conv.conv.weight.shape == (CHANNELS, 1, 4) and "head_dim=" in repr(conv)


def test_numpy_has_the_same_bits():
    numpy = pytest.importorskip("numpy")
    x, weight = draw(2, CHANNELS, 33, dtype=torch.float32, grad=False), draw(CHANNELS, 4, dtype=torch.float32, grad=False)
    options = {"sizes": SIZES, "head_dim": HEADS, "return_final_states": True}
    (results, states), (arrays, array_states) = (
        causeway.causal_conv1d_qkv(*given, **options) for given in ((x, weight), (x.numpy(), weight.numpy()))
    )
    assert all(numpy.array_equal(one.numpy(), other) for one, other in zip((*results, states), (*arrays, array_states)))


def test_compiled_and_transformed_calls_agree():
    x, weight = draw(2, CHANNELS, 17), draw(CHANNELS, 4)

    def function(x, weight):
        q, k, v = causeway.causal_conv1d_qkv(x, weight, sizes=SIZES, head_dim=HEADS, scale=0.5)
        return (q.sin().sum() + k.cos().sum() + v.square().sum()).clone()

    wanted = torch.autograd.grad(function(x, weight), (x, weight))
    found = torch.func.grad(function, (0, 1))(x, weight)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    traced = torch.autograd.grad(compiled(x, weight), (x, weight))
    for one, *others in zip(wanted, found, traced):
        for other in others:
            torch.testing.assert_close(one, other)


def test_autocast():
    x, weight = draw(2, CHANNELS, 17, dtype=torch.float32), draw(CHANNELS, 4, dtype=torch.float32)
    options = {"sizes": SIZES, "head_dim": HEADS}
    with torch.autocast("cpu", torch.bfloat16):
        results = causeway.causal_conv1d_qkv(x, weight, **options)
    plain = causeway.causal_conv1d_qkv(x.bfloat16(), weight, **options)
    assert all(torch.equal(one, other) for one, other in zip(results, plain))
    sum(result.float().sum() for result in results).backward()
    assert x.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"sizes": (12, 12, 19)}, ValueError, "expected 43 channels along its second axis"),
        ({"sizes": None}, ValueError, r"sizes is None: expected three ints \(q, k, v\), whose sum is the channels of x, 44$"),
        ({"sizes": (22, 22)}, ValueError, r"sizes is \(22, 22\): expected three ints \(q, k, v\), whose sum is the channels of x, 44$"),
        ({"sizes": (22, 44, -22)}, ValueError, r"^sizes\[2\] is -22: expected an int, 0 or more$"),
        ({"sizes": (22, 11, 11.0)}, TypeError, r"^sizes\[2\] is 11.0: expected an int"),
        ({"x": draw(2, CHANNELS)}, ValueError, r"^x has shape \(2, 44\): expected \(batch, channels, seqlen\)$"),
        ({"head_dim": 5}, ValueError, r"^q has 12 channels \(sizes\[0\]\): expected a multiple of head_dim, 5$"),
        ({"head_dim": 0}, ValueError, "head_dim is 0"),
        ({"l2norm": ("w",)}, ValueError, "l2norm is"),
        ({"l2norm": True}, ValueError, "expected a tuple of any of"),
        ({"l2norm": "qk"}, ValueError, r"l2norm is 'qk': expected a tuple .*; pass \('q', 'k'\)"),
        ({"scale": None}, TypeError, "scale is None: expected a float"),
        ({"scale": float("nan")}, ValueError, "scale is nan: expected a number from -3.4e38 to 3.4e38"),
        ({"scale": -float("inf")}, ValueError, "scale is -inf: expected a number"),
        ({"sizes": 44}, ValueError, "sizes is 44: expected three ints"),
        ({"weight": (1, 2, 3)}, TypeError, "weight is a tuple: expected one tensor, as x is"),
        ({"weight": draw(CHANNELS, 3, grad=False).numpy()}, TypeError, "weight is an ndarray: expected a torch.Tensor"),
        ({"x": [1, 2, 3]}, TypeError, "x is a list of 3: expected one tensor, or a tuple of three"),
        ({"x": ()}, TypeError, "x is a tuple of 0: expected one tensor, or a tuple of three"),
        ({"l2norm": ("k",), "scale": 0.5}, ValueError, "scale is 0.5"),
        ({"eps": 0.0}, ValueError, "eps is 0"),
        ({"activation": "relu"}, NotImplementedError, "activation is 'relu'"),
    ],
)
def test_errors_say_what_is_allowed(change, error, words):
    given = {"x": draw(2, CHANNELS, 5), "weight": draw(CHANNELS, 3), "sizes": SIZES, "head_dim": HEADS}
    with pytest.raises(error, match=words):
        causeway.causal_conv1d_qkv(**{**given, **change})
    if change.keys() <= {"l2norm", "scale", "eps", "activation"}:
        # Not first when it is called.
        with pytest.raises(error, match=words):
            causeway.nn.QKVShortConv(SIZES, HEADS, 3, **change)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"x": torch.zeros(CHANNELS)}, ValueError, r"x has shape \(44,\): expected \(batch, channels\)"),
        ({"x": (torch.zeros(2, 4),) * 3}, TypeError, "x is a tuple: expected one tensor"),
        ({"conv_state": None}, TypeError, "conv_state is a NoneType: expected a torch.Tensor"),
        ({"conv_state": torch.zeros(2, CHANNELS, 2, dtype=torch.float64)}, TypeError, "conv_state has dtype float64: expected float32, as x has"),
        ({"conv_state": torch.zeros(2, CHANNELS, 2).requires_grad_()}, RuntimeError, "pass conv_state.detach"),
        ({"conv_state": torch.zeros(3, CHANNELS, 2)}, ValueError, "expected 2 entries of 44 channels"),
        ({"conv_state": torch.zeros(2, CHANNELS, 1)}, ValueError, "state_len 2 or more"),
        ({"weight": torch.zeros(CHANNELS)}, ValueError, r"weight has shape \(44,\): expected \(channels, width\)"),
    ],
)
def test_errors_of_update_say_what_is_allowed(change, error, words):
    given = {"x": torch.zeros(2, CHANNELS), "conv_state": torch.zeros(2, CHANNELS, 2), "weight": torch.zeros(CHANNELS, 3)}
    with pytest.raises(error, match=words):
        causeway.causal_conv1d_qkv_update(**{**given, "sizes": SIZES, "head_dim": HEADS, **change})


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("shape", [(1, 8, 5), (2, 8, 4), (0, 8, 5)])
def test_three_tensors_have_one_batch_and_one_length(shape, library):
    xs, weights = [torch.zeros(2, 8, 5), torch.zeros(2, 8, 5), torch.zeros(shape)], [torch.zeros(8, 3)] * 3
    if library == "numpy":
        xs, weights = ([one.numpy() for one in given] for given in (xs, weights))
    words = re.escape(f"v has shape {shape}: expected batch 2 and seqlen 5, as q has")
    with pytest.raises(ValueError, match=f"^{words}$"):
        causeway.causal_conv1d_qkv(tuple(xs), tuple(weights), head_dim=4)


def test_update_records_no_graph():
    x, weight, state = draw(2, CHANNELS), draw(CHANNELS, 3), torch.zeros(2, CHANNELS, 2, dtype=torch.float64)
    results = causeway.causal_conv1d_qkv_update(x, state, weight, sizes=SIZES, head_dim=HEADS)
    assert not state.requires_grad and not any(result.requires_grad for result in results)
    assert torch.equal(state[..., 1], x.detach())


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (((8, 8), 4, 4), ValueError, r"sizes is \(8, 8\): expected three ints \(q, k, v\), the channels of each$"),
        ((8, 4, 4), ValueError, r"sizes is 8: expected three ints \(q, k, v\), the channels of each$"),
        (((8, 8, 10), 4, 4), ValueError, r"^v has 10 channels \(sizes\[2\]\): expected a multiple of head_dim, 4$"),
    ],
)
def test_a_module_is_checked_when_it_is_made(given, error, words):
    with pytest.raises(error, match=words):
        causeway.nn.QKVShortConv(*given)
    with pytest.raises(ValueError, match="eps is 0"):
        causeway.nn.QKVShortConv(SIZES, HEADS, 4, eps=0)


def test_a_module_takes_one_position():
    conv = causeway.nn.QKVShortConv(SIZES, HEADS, 4)
    packed = draw(2, CHANNELS, dtype=torch.float32, grad=False)
    states = conv.new_state(2), conv.new_state(2)
    for one, other in zip(conv.step(packed, states[0]), conv.step(packed[:, None], states[1])):
        assert torch.equal(one, other[:, 0])


def once(call, x):
    """A call whose saved tensors are given once, as checkpoints and offloading give them."""
    return torch.utils.checkpoint.checkpoint(call, x, use_reentrant=False)


@pytest.mark.parametrize("kind", ["one stride", "no common stride", "states alone"])
def test_saved_tensors_are_read_once(kind, device):
    weight = draw(CHANNELS, 3, device=device, dtype=torch.float32)

    def call(x):
        if kind == "states alone":
            return causeway.causal_conv1d_fn(x, weight, return_final_states=True)[1].square().sum()
        results = causeway.causal_conv1d_qkv(x, weight, sizes=SIZES, head_dim=HEADS)
        if kind == "no common stride":
            results = [t.transpose(1, 2).contiguous() for t in results]
        return sum(t.square().sum() for t in results)

    x = draw(2, CHANNELS, 7, device=device, dtype=torch.float32)
    expected = torch.autograd.grad(call(x), (x, weight))
    found = torch.autograd.grad(once(call, x), (x, weight))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("returns_states", [False, True])
@pytest.mark.parametrize("absent", ["bias", "initial_states"])
@pytest.mark.parametrize("transposed", [False, True])
def test_what_q_lacks_k_and_v_may_have(returns_states, absent, transposed):
    """As zeros in its place."""
    x = tuple(draw(2, size, 7, seed=i) for i, size in enumerate(SIZES))
    weight = tuple(draw(size, 3, seed=i) for i, size in enumerate(SIZES))
    if absent == "bias":
        zeros, k, v, axis = torch.zeros(SIZES[0]).double(), draw(SIZES[1], seed=9), draw(SIZES[2], seed=9), 0
    else:
        zeros, k, v, axis = torch.zeros(2, SIZES[0], 2).double(), draw(2, SIZES[1], 2, seed=9), draw(2, SIZES[2], 2, seed=9), 1

    def loss(results):
        results = results[0] if returns_states else results
        return sum((t.transpose(1, 2).contiguous() if transposed else t).square().sum() for t in results)

    options = {"head_dim": HEADS, "return_final_states": returns_states}
    leaves = *x, *weight, k, v
    apart = causeway.causal_conv1d_qkv(x, weight, **{absent: (None, k, v)}, **options)
    found = torch.autograd.grad(loss(apart), leaves)
    joined = {absent: torch.cat([zeros, k, v], axis)}
    whole = causeway.causal_conv1d_qkv(torch.cat(x, 1), torch.cat(weight), **joined, sizes=SIZES, **options)
    torch.testing.assert_close(found, torch.autograd.grad(loss(whole), leaves))


def test_other_than_three_is_refused():
    x, weight = tuple(draw(2, size, 7) for size in SIZES), tuple(draw(size, 3) for size in SIZES)
    biases = tuple(draw(size) for size in SIZES)
    for returns_states in (False, True):
        options = {"head_dim": HEADS, "return_final_states": returns_states}
        with pytest.raises(TypeError, match="weight is a Tensor: expected a tuple of three"):
            causeway.causal_conv1d_qkv(x, weight[0], **options)
        for wrong in (biases[:1], (*biases, biases[0]), ()):
            with pytest.raises(TypeError, match=f"bias is a tuple of {len(wrong)}: expected a tuple of three"):
                causeway.causal_conv1d_qkv(x, weight, wrong, **options)
        with pytest.raises(TypeError, match="weight is a tuple of 4: expected a tuple of three"):
            causeway.causal_conv1d_qkv(x, (*weight, biases[0]), **options)
    with pytest.raises((TypeError, ValueError), match="^sizes"):
        causeway.causal_conv1d_qkv(draw(2, CHANNELS, 7), draw(CHANNELS, 3), sizes=torch.tensor(SIZES), head_dim=HEADS)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_compiled_updates_of_a_state_that_is_a_part(axis, width):
    """As one layer's part of a cache: PyTorch's compilers would change another part, or find none."""
    x, weight = draw(2, CHANNELS, grad=False), draw(CHANNELS, width, grad=False)
    shape = [2, CHANNELS, width - 1]
    shape[axis] += 2
    caches = [torch.zeros(shape, dtype=torch.float64) for _ in range(2)]
    update = lambda state: causeway.causal_conv1d_qkv_update(x, state, weight, sizes=SIZES, head_dim=HEADS)  # noqa: E731
    states = [cache.narrow(axis, 1, shape[axis] - 2) for cache in caches]
    torch.testing.assert_close(torch.compile(update, fullgraph=True, backend="aot_eager")(states[0]), update(states[1]))
    assert torch.equal(*caches)


@pytest.mark.parametrize("has_states", [False, True])
def test_results_may_be_changed_in_place(device, has_states):
    """PyTorch refuses that of a function's results that are views, where it has several."""
    x, weight = torch.randn(2, 16, 5, device=device), torch.randn(16, 3, device=device, requires_grad=True)

    def loss(in_place):
        found = causeway.causal_conv1d_qkv(x, weight, sizes=(4, 4, 8), head_dim=2, return_final_states=has_states)
        results = found[0] if has_states else found
        return sum((one.mul_(2) if in_place else one * 2).square().sum() for one in results)

    gradients = [torch.autograd.grad(loss(in_place), weight)[0] for in_place in (True, False)]
    assert torch.equal(*gradients)


def test_a_backward_pass_under_autocast_of_another_dtype():
    """Gradients that the dispatcher finds are joined there; autocast joins none of the other dtype of 16 bits."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    x, weight = torch.randn(2, 16, 5).half().requires_grad_(), torch.randn(16, 3).half()
    q, k, v = causeway.causal_conv1d_qkv(x, weight, sizes=(4, 4, 8), head_dim=2)
    (expected,) = torch.autograd.grad((q, k, v), x, (q, k, v), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16), Mode():
        (found,) = torch.autograd.grad((q, k, v), x, (q, k, v))
    assert torch.equal(found, expected)
