"""Autograd: gradcheck, which gradients are made, hooks into torch.func, and what cannot be differentiated."""

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402


def draw(*shape, grad=True, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_(grad)


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("kind", ["plain", "states", "seq_idx", "cu_seqlens"])
def test_gradcheck(activation, kind):
    x, weight, bias = draw(2 if kind != "cu_seqlens" else 1, 3, 7), draw(3, 4), draw(3)
    residual, states = draw(*x.shape, seed=1), None
    seq_idx = cu_seqlens = None
    if kind == "states":
        states = draw(2, 3, 3)
    if kind == "seq_idx":
        seq_idx = torch.tensor([[0, 0, 1, 1, 1, -1, 2], [0] * 7], dtype=torch.int32)
    if kind == "cu_seqlens":
        cu_seqlens, states = torch.tensor([0, 2, 2, 7]), draw(3, 3, 3)

    def function(x, weight, bias, states, residual):
        return causeway.causal_conv1d_fn(
            x, weight, bias, seq_idx, states, True, None, activation, cu_seqlens=cu_seqlens, residual=residual
        )

    assert torch.autograd.gradcheck(function, (x, weight, bias, states, residual))


@pytest.mark.parametrize("without", [(), ("bias",), ("residual",), ("bias", "initial_states", "residual")])
def test_gradients_have_the_same_bits_through_the_dispatcher(without):
    """Those of the two passes that are native, and of the operators, which a dispatch mode sees."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    t = {"weight": draw(3, 4), "bias": draw(3), "initial_states": draw(2, 3, 3), "residual": draw(2, 3, 7, seed=1)}
    t = {"x": draw(2, 3, 7), **{name: None if name in without else tensor for name, tensor in t.items()}}
    leaves = [tensor for tensor in t.values() if tensor is not None]
    y, dy = causeway.causal_conv1d_fn(**t, activation="silu"), draw(2, 3, 7, grad=False, seed=2)
    found = torch.autograd.grad(y, leaves, dy, retain_graph=True)
    with Watch():
        expected = torch.autograd.grad(y, leaves, dy)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, leaves, dy)


def test_gradients_without_the_native_passes(monkeypatch):
    """As with a PyTorch that does not tell in C what its tensors are."""
    from causeway import _native
    from causeway._torch import conv1d

    def gradients():
        leaves = x, weight, residual = draw(2, 3, 7), draw(3, 4), draw(2, 3, 7, seed=1)
        forget()
        y = causeway.causal_conv1d_fn(x, weight, activation="silu", residual=residual)
        return torch.autograd.grad(y.cos().sum(), leaves)

    def forget():
        conv1d._recorded.cache_clear()
        _native.causal_conv1d_forward.keep(7, "silu", None)

    class Unsure:
        def __init__(self, *arguments):
            self.forward = recorded(*arguments).forward

        def backward(self, ctx, saved, given):
            calls.append(given)

    recorded, expected, calls = _native.Recorded, gradients(), []
    monkeypatch.setattr(_native, "Recorded", Unsure)
    found = gradients()
    forget()
    assert len(calls) == 1
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("wanted", ["x", "weight", "bias", "initial_states", "residual"])
def test_only_the_gradient_that_is_wanted(wanted):
    t = {
        "x": draw(2, 3, 7, grad=False),
        "weight": draw(3, 4, grad=False),
        "bias": draw(3, grad=False),
        "initial_states": draw(2, 3, 3, grad=False),
        "residual": draw(2, 3, 7, grad=False, seed=5),
    }
    t[wanted].requires_grad_()
    causeway.causal_conv1d_fn(**t, activation="silu").sum().backward()
    assert all((t[name].grad is not None) == (name == wanted) for name in t)


def test_no_graph_without_need():
    x, weight = draw(2, 3, 7), draw(3, 4)
    with torch.no_grad():
        assert causeway.causal_conv1d_fn(x, weight).grad_fn is None
    with torch.inference_mode():
        assert causeway.causal_conv1d_fn(x, weight).is_inference()
    assert causeway.causal_conv1d_fn(x.detach(), weight.detach()).grad_fn is None


def test_a_gradient_of_final_states_alone():
    x, weight = draw(2, 3, 7), draw(3, 4)
    _, final_states = causeway.causal_conv1d_fn(x, weight, return_final_states=True)
    (dx,) = torch.autograd.grad(final_states.sum(), x)
    expected = torch.zeros_like(x)
    expected[..., -3:] = 1
    assert torch.equal(dx, expected)


def test_final_states_out_is_written_and_keeps_no_graph():
    x, weight = draw(2, 3, 7), draw(3, 4)
    out = torch.full((2, 3, 3), 7.0, dtype=torch.float64)
    version = out._version
    y, final_states = causeway.causal_conv1d_fn(x, weight, return_final_states=True, final_states_out=out)
    assert torch.equal(out, x[..., -3:]) and not out.requires_grad and final_states.requires_grad
    with torch.no_grad():
        out.zero_()
        _, same = causeway.causal_conv1d_fn(x, weight, return_final_states=True, final_states_out=out)
    assert same is out and torch.equal(out, x[..., -3:]) and out._version > version + 2


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_final_states_out_is_written_where_it_is_not_returned(library):
    x, weight, out = draw(2, 3, 7).detach(), draw(3, 4).detach(), torch.zeros(2, 3, 3, dtype=torch.float64)
    given = [tensor.numpy() if library == "numpy" else tensor for tensor in (x, weight, out)]
    y = causeway.causal_conv1d_fn(*given[:2], final_states_out=given[2])
    assert y.shape == x.shape and torch.equal(out, x[..., -3:])


def test_a_changed_input_is_noticed_by_backward():
    conv_state, weight = torch.zeros(2, 3, 3), torch.ones(3, 4)
    factor = torch.ones(2, 3, 3, requires_grad=True)
    product = factor * conv_state
    causeway.causal_conv1d_update(torch.ones(2, 3), conv_state, weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


X, WEIGHT = (2, 6, 7), (6, 4)
QKV = dict(sizes=(2, 2, 2), head_dim=2)

# (the name in the message, a call, sizes of its tensors)
TWICE = [
    ("causal_conv1d_fn", lambda x, w: causeway.causal_conv1d_fn(x, w, activation="silu"), (X, WEIGHT)),
    ("causal_conv1d_fn", causeway.nn.CausalConv1d(6, 4).double(), (X,)),
    ("causal_conv1d_gated", causeway.causal_conv1d_gated, (X, X, X, WEIGHT)),
    ("causal_conv1d_gated", lambda B, x, w: causeway.causal_conv1d_gated(B, x, None, w), (X, X, WEIGHT)),
    ("causal_conv1d_gated_packed", causeway.causal_conv1d_gated_packed, (X, (2, 4))),
    ("causal_conv1d_gated_packed", lambda w: causeway.causal_conv1d_gated_packed(torch.ones(X).double(), w), ((2, 4),)),
    ("causal_conv1d_qkv", lambda x, w: causeway.causal_conv1d_qkv(x, w, **QKV)[1], (X, WEIGHT)),
    ("causal_conv1d_qkv", lambda x, w: causeway.causal_conv1d_qkv(x, w, **QKV)[2], (X, WEIGHT)),
    ("causal_conv1d_qkv", lambda x, w: causeway.causal_conv1d_qkv((x, x, x), (w, w, w), head_dim=2, l2norm=())[0], (X, WEIGHT)),
]


@pytest.mark.parametrize("way", ["eager", "transform"])
@pytest.mark.parametrize("name, function, sizes", TWICE)
def test_second_derivatives_are_refused_in_words(name, function, sizes, way):
    """In the name of the call that was made."""
    tensors = [draw(*shape) for shape in sizes]
    with pytest.raises(NotImplementedError, match=f"^{name} cannot be differentiated twice"):
        if way == "eager":
            (first, *_) = torch.autograd.grad(function(*tensors).square().sum(), tensors, create_graph=True)
            first.sum().backward()
        else:
            first = torch.func.grad(lambda *tensors: function(*tensors).square().sum())
            torch.func.grad(lambda *tensors: first(*tensors).sum())(*(tensor.detach() for tensor in tensors))


def test_forward_mode_is_refused_in_words():
    x, weight = draw(2, 3, 7, grad=False), draw(3, 4, grad=False)
    with pytest.raises(NotImplementedError, match="no forward-mode gradient"):
        torch.func.jvp(lambda x: causeway.causal_conv1d_fn(x, weight), (x,), (x,))
    with pytest.raises(NotImplementedError, match="gemm has no forward-mode gradient"):
        torch.func.jvp(lambda x: causeway.gemm(x, x), (weight[:, :3].half(),), (weight[:, :3].half(),))


def test_batched_gradients():
    """As `torch.autograd.functional.jacobian(vectorize=True)` asks for them."""
    x, weight, states = draw(2, 3, 7), draw(3, 4), draw(2, 3, 3)
    a, b = (draw(*shape, dtype=torch.bfloat16) for shape in [(4, 5), (5, 3)])

    def convolution(weight, states=None):
        y, final = causeway.causal_conv1d_fn(x, weight, None, None, states, True, activation="silu")
        return y + final.sum(-1, keepdim=True)

    for function, leaves in [
        (lambda weight: causeway.causal_conv1d_fn(x, weight, activation="silu"), [weight]),
        (convolution, [weight]),
        (convolution, [weight, states]),
        (causeway.gemm, [a, b]),
    ]:
        y = function(*leaves)
        dy = torch.stack([y.detach(), 2 * y.detach(), torch.ones_like(y)])
        found = torch.autograd.grad(y, leaves, dy, is_grads_batched=True, retain_graph=True)
        expected = [torch.autograd.grad(y, leaves, one, retain_graph=True) for one in dy]
        assert all(torch.equal(all_, torch.stack(each)) for all_, each in zip(found, zip(*expected)))


TRANSFORMS = {
    "grad": lambda f: torch.func.grad(lambda x, w: f(x, w).sin().sum(), argnums=(0, 1)),
    "jacrev": lambda f: torch.func.jacrev(f, argnums=(0, 1)),
    "per-sample gradients": lambda f: torch.func.vmap(
        torch.func.grad(lambda x, w: f(x[None], w).sin().sum(), argnums=1), in_dims=(0, None)
    ),
    "vmap over weight": lambda f: (
        lambda x, w: torch.func.vmap(f, in_dims=(None, 1), out_dims=1)(x, torch.stack([w, 2 * w, -w], 1))
    ),
    "vmap over the last axis": lambda f: (
        lambda x, w: torch.func.vmap(f, in_dims=(3, None))(torch.stack([x, 2 * x], 3), w)
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_torch_func(name):
    x, weight, bias = draw(2, 3, 7, grad=False), draw(3, 4, grad=False), draw(3, grad=False)
    states = draw(2, 3, 3, grad=False)

    def kernel(x, weight):
        before = states[: x.shape[0]]
        return causeway.causal_conv1d_fn(x, weight, bias, None, before, activation="silu")

    def plain(x, weight):
        return causeway.causal_conv1d_ref(x, weight, bias, states[: x.shape[0]], activation="silu")

    found, expected = TRANSFORMS[name](kernel)(x, weight), TRANSFORMS[name](plain)(x, weight)
    torch.testing.assert_close(found, expected)


def test_vmap_over_indices_is_refused_in_words():
    x, weight = draw(2, 1, 3, 7, grad=False), draw(3, 4, grad=False)
    seq_idx = torch.zeros(2, 1, 7, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="vmap over seq_idx"):
        torch.func.vmap(lambda x, i: causeway.causal_conv1d_fn(x, weight, seq_idx=i))(x, seq_idx)


def test_a_dispatch_mode_sees_the_operator():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        causeway.causal_conv1d_fn(draw(2, 3, 7), draw(3, 4)).sum().backward()
    assert any("causal_conv1d_forward" in name for name in seen)
    assert any("causal_conv1d_backward" in name for name in seen)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_a_convolution(device, dtype):
    draws = [draw(2, 8, 16), draw(8, 4), draw(8)]
    x, weight, bias = (t.detach().float().to(device).requires_grad_() for t in draws)
    states = torch.zeros(2, 8, 3, device=device, dtype=dtype)
    with torch.autocast(device, dtype=dtype):
        y = causeway.causal_conv1d_fn(x, weight, bias, activation="silu")
        assert y.dtype == torch.nn.functional.conv1d(x, weight[:, None], groups=8).dtype == dtype
        if device == "cpu":
            assert causeway.causal_conv1d_fn(x.double(), weight.double()).dtype == torch.float64
        with torch.no_grad():
            found = causeway.causal_conv1d_fn(x, weight, return_final_states=True, final_states_out=states)
        assert found[0].dtype == dtype and found[1] is states and torch.equal(states, x[..., -3:].to(dtype))
    y.float().sum().backward()
    assert x.grad.dtype == weight.grad.dtype == torch.float32
    expected = causeway.causal_conv1d_fn(x.to(dtype), weight, bias, activation="silu")
    assert torch.equal(y, expected)


def test_saved_tensor_hooks_and_checkpointing():
    from torch.utils.checkpoint import checkpoint

    x, weight = draw(2, 3, 7), draw(3, 4)
    function = lambda x, w: causeway.causal_conv1d_fn(x, w, activation="silu")  # noqa: E731
    expected = torch.autograd.grad(function(x, weight).sum(), (x, weight))
    found = torch.autograd.grad(checkpoint(function, x, weight, use_reentrant=False).sum(), (x, weight))
    assert all(torch.equal(a, b) for a, b in zip(found, expected))


class Wrapper(torch.Tensor):
    """A tensor around another one, without memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, strides=inner.stride())

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        inner = lambda t: t.inner if isinstance(t, Wrapper) else t  # noqa: E731
        found = function(*torch.utils._pytree.tree_map(inner, args), **(kwargs or {}))
        return torch.utils._pytree.tree_map(lambda t: cls(t) if isinstance(t, torch.Tensor) else t, found)


def test_a_gradient_of_another_class():
    x, weight = draw(2, 3, 7), draw(3, 4)
    (causeway.causal_conv1d_fn(x, weight) * Wrapper(torch.ones(2, 3, 7, dtype=torch.float64))).sum().backward()
    expected = torch.autograd.grad(causeway.causal_conv1d_fn(x, weight).sum(), (x, weight))
    for found, truth in zip((x.grad, weight.grad), expected):
        torch.testing.assert_close(getattr(found, "inner", found), truth)


def test_tensors_without_memory():
    x, weight = draw(2, 3, 7), draw(3, 4)
    zeros = torch._efficientzerotensor(2, 3, 7, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="x cannot be read: it has no memory"):
        causeway.causal_conv1d_fn(zeros, weight)
    with pytest.raises(RuntimeError, match="dy cannot be read: it has no memory"):
        torch.autograd.grad(causeway.causal_conv1d_fn(x, weight), x, zeros)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        y = causeway.causal_conv1d_fn(x, weight)
        assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape


SIZES = {"sizes": (4, 4, 4), "head_dim": 2}
# Calls with a gradient: the name of their function of autograd's, and the call, of x (2, 12, 8).
CALLS = {
    "plain": ("CausalConv1d", lambda x: causeway.causal_conv1d_fn(x, draw(12, 3), residual=x)),
    "states": ("CausalConv1d", lambda x: causeway.causal_conv1d_fn(x, draw(12, 3), return_final_states=True)),
    "gated": ("CausalConv1d", lambda x: causeway.causal_conv1d_gated(x, x, x, draw(12, 3))),
    "packed": ("CausalConv1dGated", lambda x: causeway.causal_conv1d_gated_packed(x, draw(4, 3))),
    "qkv": ("CausalConv1dQKV", lambda x: causeway.causal_conv1d_qkv(x, draw(12, 3), **SIZES)),
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_negated_gradient(kind):
    """As of the imaginary part of a conjugate, whose values PyTorch negates only where it is read."""
    x = draw(2, 12, 8)
    results = CALLS[kind][1](x)
    results = results if isinstance(results, tuple) else (results,)
    values = [draw(*result.shape, grad=False, seed=at) for at, result in enumerate(results)]
    negated = [torch.complex(value, -value).conj().imag for value in values]
    assert all(one.is_neg() and torch.equal(one, value) for one, value in zip(negated, values))
    expected = torch.autograd.grad(results, x, values, retain_graph=True)
    assert torch.equal(*torch.autograd.grad(results, x, negated), *expected)


@pytest.mark.parametrize("kind", CALLS)
def test_errors_of_autograd_name_the_call(kind):
    name, call = CALLS[kind]
    results = call(draw(2, 12, 8))
    y = results[0] if isinstance(results, tuple) else results
    assert y.grad_fn.name() == f"{name}Backward"
    square = y.square().sum()
    with torch.no_grad():
        y.mul_(2)
    # Earlier versions of PyTorch write the whole name.
    words = f"is output 0 of {name}(Backward)?, is at version 1"
    if kind == "qkv":
        # Before 2.10, q, k and v are views of one result each.
        words += f"|Output 0 of {name}(Backward)? is a view"
    with pytest.raises(RuntimeError, match=words):
        square.backward()


def test_the_name_of_a_product():
    c = causeway.gemm(draw(4, 4, dtype=torch.float16), draw(4, 4, dtype=torch.float16, seed=1))
    assert c.grad_fn.name() == "GemmBackward"


def test_the_function_of_the_drop_in_is_not_differentiated_twice():
    from causeway.drop_in.interface import CausalConv1dFn

    x, weight = draw(1, 2, 5), draw(2, 3)
    (dx,) = torch.autograd.grad(CausalConv1dFn.apply(x, weight).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="cannot be differentiated twice"):
        torch.autograd.grad(dx.square().sum(), x)
    (expected,) = torch.autograd.grad(causeway.causal_conv1d_ref(x, weight).square().sum(), x)
    torch.testing.assert_close(dx, expected)


@pytest.mark.parametrize("kind", ["qkv"])
def test_gradients_of_several_at_once(kind):
    x = draw(2, 12, 8)
    results = CALLS[kind][1](x)
    many = [draw(3, *result.shape, grad=False, seed=at) for at, result in enumerate(results)]
    (found,) = torch.autograd.grad(results, x, many, retain_graph=True, is_grads_batched=True)
    one = [torch.autograd.grad(results, x, [each[at] for each in many], retain_graph=True)[0] for at in range(3)]
    torch.testing.assert_close(found, torch.stack(one))


def test_what_is_written_has_no_gradient():
    x, weight = draw(2, 3, 8), draw(3, 4)
    out = draw(2, 3, 3) * 2
    with pytest.raises(RuntimeError, match="final_states_out requires a gradient, and is written to"):
        causeway.causal_conv1d_fn(x, weight, final_states_out=out)
    with torch.no_grad():
        causeway.causal_conv1d_fn(x, weight, final_states_out=out)


def test_compiled_steps_have_no_gradient():
    step = torch.compile(lambda x, state, weight: causeway.causal_conv1d_update(x, state, weight), fullgraph=True, backend="aot_eager")
    x, state, weight = draw(2, 3, grad=False), draw(2, 3, 3, grad=False), draw(3, 4)
    expected = causeway.causal_conv1d_update(x, state.clone(), weight)
    y = step(x, state, weight)
    assert not y.requires_grad and not expected.requires_grad
    torch.testing.assert_close(y, expected)
    states = torch.compile(
        lambda x, ends: causeway.causal_conv1d_varlen_states(x, ends, 2), fullgraph=True, backend="aot_eager"
    )
    assert not states(draw(5, 3), torch.tensor([0, 2, 5])).requires_grad


def test_compiled_calls_refuse_states_of_another_dtype():
    call = torch.compile(
        lambda x, weight, out: causeway.causal_conv1d_fn(x, weight, final_states_out=out), backend="aot_eager"
    )
    with pytest.raises(Exception, match="final_states_out has dtype float32: expected float64, the dtype of x"):
        call(draw(2, 3, 8), draw(3, 4), torch.zeros(2, 3, 3))


def test_vmap_of_an_empty_batch():
    x, weight = torch.randn(0, 2, 4, 8), torch.randn(4, 3)
    assert torch.func.vmap(lambda x: causeway.causal_conv1d_fn(x, weight))(x).shape == x.shape
    weights = torch.randn(0, 4, 3)
    one = torch.randn(2, 4, 8)
    each = torch.func.vmap(lambda w: causeway.causal_conv1d_fn(one, w))
    assert each(weights).shape == (0, 2, 4, 8)
    gradients = torch.func.vmap(torch.func.grad(lambda x: causeway.causal_conv1d_fn(x, weight).sum()))
    assert gradients(x).shape == x.shape
