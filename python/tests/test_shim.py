"""The drop-in: the original's import names, parameter names and calling conventions."""

import importlib
import importlib.util
import inspect
import operator
import sys

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402


@pytest.fixture(autouse=True, params=["distribution", "installed at run time"])
def drop_in(root, monkeypatch, request):
    """The drop-in's source directory on the path, or its modules put where imports look first."""
    if request.param == "distribution":
        monkeypatch.syspath_prepend(str(root / "shim"))
        yield
        for name in [name for name in sys.modules if name.startswith("causal_conv1d")]:
            del sys.modules[name]
    else:
        with causeway.install_causal_conv1d():
            yield


def tensors(device, dtype=torch.float32):
    torch.manual_seed(0)
    # As mamba_ssm has them: x and dx are halves of larger tensors, channel-first.
    xz, dxz = (
        torch.randn(2, 16, 20, device=device, dtype=dtype),
        torch.zeros(2, 16, 20, device=device, dtype=dtype),
    )
    weight, bias = torch.randn(8, 4, device=device), torch.randn(8, device=device)
    return xz.chunk(2, dim=1)[0], weight, bias, torch.randn(2, 8, 20, device=device).to(dtype), dxz


def expected_gradients(x, weight, bias, dout):
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    y = causeway.causal_conv1d_fn(*leaves, activation="silu")
    return y.detach(), torch.autograd.grad(y, leaves, dout)


# The parameters of causal_conv1d 1.7.0, and their defaults.
FN = (
    "(x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, final_states_out=None, "
    "activation=None)"
)
UPDATE = (
    "(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None)"
)
FWD_CPP = "(x, weight, bias, seq_idx, initial_states, out, final_states_out, silu_activation)"
BWD_CPP = (
    "(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, dx, dweight, dbias, dinitial_states, "
    "silu_activation)"
)
UPDATE_CPP = "(x, conv_state, weight, bias, out, silu_activation, cache_seqlens, conv_state_indices)"
CPP = {
    "causal_conv1d_fwd_function": (
        "(x, weight, bias, seq_idx, initial_states, final_states_out, silu_activation)"
    ),
    "causal_conv1d_bwd_function": (
        "(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, dx, return_dinitial_states, silu_activation)"
    ),
    "causal_conv1d_update_function": (
        "(x, conv_state, weight, bias, silu_activation, cache_seqlens, conv_state_indices)"
    ),
}
SIGNATURES = {
    "causal_conv1d": {"causal_conv1d_fn": FN, "causal_conv1d_update": UPDATE},
    "causal_conv1d.causal_conv1d_interface": {
        "causal_conv1d_fn": FN,
        "causal_conv1d_update": UPDATE,
        "causal_conv1d_ref": (
            "(x, weight, bias=None, initial_states=None, return_final_states=False, final_states_out=None, "
            "activation=None, seq_idx=None)"
        ),
        "causal_conv1d_update_ref": (
            "(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None)"
        ),
        "CausalConv1dFn.forward": FN.replace("(x", "(ctx, x"),
        **CPP,
    },
    "causal_conv1d.causal_conv1d_varlen": {
        "causal_conv1d_varlen_states": "(x, cu_seqlens, state_len)",
        "causal_conv1d_varlen_states_ref": "(x, cu_seqlens, state_len)",
    },
    "causal_conv1d.cpp_functions": {
        **CPP,
        "_causal_conv1d_fwd_cpp": FWD_CPP,
        "_causal_conv1d_bwd_cpp": BWD_CPP,
        "_causal_conv1d_update_cpp": UPDATE_CPP,
    },
    "causal_conv1d_cuda": {
        "causal_conv1d_fwd": FWD_CPP,
        "causal_conv1d_bwd": BWD_CPP,
        "causal_conv1d_update": UPDATE_CPP,
    },
}


@pytest.mark.parametrize("module", SIGNATURES)
def test_signatures_are_the_original_ones(module):
    """Callers forward each keyword that a signature has, so that one more is as wrong as one less."""
    found = importlib.import_module(module)
    for name, expected in SIGNATURES[module].items():
        function = operator.attrgetter(name)(found)
        function = getattr(function, "_init_fn", function)
        signature = inspect.signature(function)
        plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
        assert str(inspect.Signature(plain)) == expected, name


def test_version_and_library_name():
    import causal_conv1d
    from causal_conv1d import cpp_functions

    assert causal_conv1d.__version__ == "1.7.0+causeway" and cpp_functions.LIBRARY_NAME == "DaoAILab"
    assert importlib.util.find_spec("causal_conv1d") is not None
    assert causal_conv1d.causal_conv1d_interface.causal_conv1d_fn is causal_conv1d.causal_conv1d_fn
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("causal_conv1d.nothing")


@pytest.mark.parametrize("kind", ["plain", "states", "seq_idx"])
def test_the_autograd_function(device, kind):
    from causal_conv1d.causal_conv1d_interface import CausalConv1dFn

    x, weight, bias, dout, _ = tensors(device)
    states = torch.randn(2, 8, 3, device=device) if kind == "states" else None
    seq_idx = None
    if kind == "seq_idx":
        seq_idx = torch.arange(20, device=device).div(6, rounding_mode="floor").int().expand(2, -1)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias, states) if t is not None]
    x, weight, bias, *states = leaves
    call = lambda f: f(x, weight, bias, seq_idx, states[0] if states else None, bool(states), None, "silu")  # noqa: E731
    found, expected = call(CausalConv1dFn.apply), call(causeway.causal_conv1d_fn)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    outputs = lambda result: sum(t.sin().sum() for t in (result if states else [result]))  # noqa: E731
    got, want = (torch.autograd.grad(outputs(result), leaves) for result in (found, expected))
    torch.testing.assert_close(got, want, atol=0, rtol=0)


def test_final_states_of_the_autograd_function(device):
    from causal_conv1d.causal_conv1d_interface import CausalConv1dFn

    x, weight, bias, _, _ = tensors(device)
    states = torch.zeros(2, 8, 3, device=device)
    _, found = CausalConv1dFn.apply(x, weight, bias, None, None, True, states, "silu")
    assert torch.equal(states, x[..., -3:]) and torch.equal(found, states)
    assert torch.is_tensor(CausalConv1dFn.apply(x, weight))
    with pytest.raises(NotImplementedError, match="activation is 'gelu'"):
        CausalConv1dFn.apply(x, weight, None, None, None, False, None, "gelu")


def test_cpp_functions(device):
    from causal_conv1d.cpp_functions import (
        causal_conv1d_bwd_function,
        causal_conv1d_fwd_function,
        causal_conv1d_update_function,
    )

    x, weight, bias, dout, dxz = tensors(device, torch.bfloat16)
    y, (dx, dweight, dbias) = expected_gradients(x, weight, bias, dout)
    assert torch.equal(causal_conv1d_fwd_function(x, weight, bias, None, None, None, True), y)
    target = dxz.chunk(2, dim=1)[0]
    found = causal_conv1d_bwd_function(x, weight, bias, dout, None, None, None, target, False, True)
    assert found[0] is target and found[3] is None
    assert torch.equal(target, dx) and torch.equal(found[1], dweight) and torch.equal(found[2], dbias)
    assert not dxz.chunk(2, dim=1)[1].any()
    states = torch.randn(2, 8, 3, device=device).bfloat16()
    found = causal_conv1d_bwd_function(x, weight, None, dout, None, states, None, None, True, False)
    assert found[0].shape == x.shape and found[2] is None and found[3].shape == states.shape
    other = states.clone()
    out = causal_conv1d_update_function(x[..., 0], states, weight, bias, True, None, None)
    assert torch.equal(out, causeway.causal_conv1d_update(x[..., 0], other, weight, bias, "silu"))
    assert torch.equal(states, other)


def test_extension_module(device):
    import causal_conv1d_cuda

    x, weight, bias, dout, dxz = tensors(device, torch.bfloat16)
    weight, bias = weight.bfloat16(), bias.bfloat16()
    y, _ = expected_gradients(x, weight, bias, dout)
    # dweight and dbias of 32 bits take terms of 32 bits, and dx is formed from the same.
    _, (dx, dweight, dbias) = expected_gradients(x, weight.float(), bias.float(), dout)
    out, final = torch.empty_like(x), torch.empty(2, 8, 3, device=device, dtype=x.dtype)
    causal_conv1d_cuda.causal_conv1d_fwd(x, weight, bias, None, None, out, final, True)
    assert torch.equal(out, y) and torch.equal(final, x[..., -3:])
    target, sums = dxz.chunk(2, dim=1)[0], [torch.ones(8, 4, device=device), torch.ones(8, device=device)]
    causal_conv1d_cuda.causal_conv1d_bwd(x, weight, bias, dout, None, None, None, target, *sums, None, True)
    assert torch.equal(target, dx)
    torch.testing.assert_close(sums, [dweight + 1, dbias + 1])
    state = torch.zeros(2, 8, 3, device=device, dtype=x.dtype)
    causal_conv1d_cuda.causal_conv1d_update(x[..., 0], state, weight, bias, out[..., 0], True, None, None)
    torch.testing.assert_close(out[..., 0], y[..., 0])


def test_references_and_varlen(device):
    from causal_conv1d.causal_conv1d_interface import causal_conv1d_ref
    from causal_conv1d.causal_conv1d_varlen import (
        causal_conv1d_varlen_states,
        causal_conv1d_varlen_states_ref,
    )

    x, weight, bias, _, _ = tensors(device)
    torch.testing.assert_close(
        causal_conv1d_ref(x, weight, bias, activation="silu"),
        causeway.causal_conv1d_fn(x, weight, bias, activation="silu"),
        atol=1e-5,
        rtol=1e-5,
    )
    seq_idx = torch.arange(x.shape[2], device=device, dtype=torch.int32).div(7, rounding_mode="floor")
    seq_idx = seq_idx.expand(x.shape[0], -1)
    torch.testing.assert_close(
        causal_conv1d_ref(x, weight, bias, activation="silu", seq_idx=seq_idx),
        causeway.causal_conv1d_fn(x, weight, bias, seq_idx, activation="silu"),
        atol=1e-5,
        rtol=1e-5,
    )
    packed, ends = x[0].T, torch.tensor([0, 2, 20], device=device, dtype=torch.int32)
    assert torch.equal(
        causal_conv1d_varlen_states(packed, ends, 5), causal_conv1d_varlen_states_ref(packed, ends, 5)
    )


def test_batched_gradients_of_the_function():
    from causeway.drop_in.interface import CausalConv1dFn

    x, weight = torch.randn(2, 4, 8, requires_grad=True), torch.randn(4, 3)
    dys = torch.randn(3, 2, 4, 8)
    (found,) = torch.autograd.grad(CausalConv1dFn.apply(x, weight), x, dys, is_grads_batched=True)
    expected = [torch.autograd.grad(causeway.causal_conv1d_fn(x, weight), x, dy)[0] for dy in dys]
    torch.testing.assert_close(found, torch.stack(expected))
