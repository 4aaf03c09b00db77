"""Kernels with all outputs given, and the drop-in's functions around them, as compilers and fake tensors see them."""

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402
import numpy as np  # noqa: E402
from causeway.drop_in import cpp_functions, extension  # noqa: E402
from causeway.drop_in.interface import CausalConv1dFn  # noqa: E402

NONE = (None, None, None)


@pytest.fixture(autouse=True)
def fresh_compiler():
    """No guards and caches of another test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def tensors(device, dtype=torch.float32):
    torch.manual_seed(0)
    x, dy = (torch.randn(2, 6, 9, device=device, dtype=dtype) for _ in range(2))
    return x, torch.randn(6, 4, device=device), torch.randn(6, device=device), dy


class Mixer(torch.autograd.Function):
    """As mamba_ssm: the convolution of one half of a projection, and its gradient into one half of another tensor."""

    @staticmethod
    def forward(ctx, xz, weight, bias):
        x, z = xz.chunk(2, dim=1)
        y = cpp_functions.causal_conv1d_fwd_function(x, weight, bias, None, None, None, True)
        ctx.save_for_backward(xz, weight, bias, y)
        return y * z

    @staticmethod
    def backward(ctx, dout):
        xz, weight, bias, y = ctx.saved_tensors
        x, z = xz.chunk(2, dim=1)
        dxz = torch.empty_like(xz)
        dx, dz = dxz.chunk(2, dim=1)
        dz.copy_(dout * y)
        dx, dweight, dbias, _ = cpp_functions.causal_conv1d_bwd_function(
            x, weight, bias, dout * z, None, None, None, dx, False, True
        )
        return dxz, dweight, dbias


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", ["a caller's own autograd function", "CausalConv1dFn"])
def test_autograd_functions_compile(device, backend, name):
    x, weight, bias, dy = tensors(device)
    xz = torch.cat([x, dy], dim=1).requires_grad_()
    leaves = xz, weight.requires_grad_(), bias.requires_grad_()

    def mixer(xz, weight, bias):
        return Mixer.apply(xz * 2, weight, bias) + 1

    def states(xz, weight, bias):
        x, z = xz.chunk(2, dim=1)
        y, final = CausalConv1dFn.apply(x, weight, bias, None, z[..., :3] * 1, True, None, "silu")
        return y + final.sum(-1, keepdim=True)

    function = states if name == "CausalConv1dFn" else mixer
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    found, expected = compiled(*leaves), function(*leaves)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    got = torch.autograd.grad(found.sin().sum(), leaves)
    want = torch.autograd.grad(expected.sin().sum(), leaves)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_functions_without_autograd_compile(device, backend):
    x, weight, bias, dy = tensors(device)

    def everything(x, weight, bias, dy, state, final):
        y = cpp_functions.causal_conv1d_fwd_function(x + 1, weight, bias, None, state * 2, final, True)
        gradients = cpp_functions.causal_conv1d_bwd_function(
            x + 1, weight, bias, dy, None, state * 2, None, None, True, True
        )
        step = cpp_functions.causal_conv1d_update_function(dy[..., 0], state, weight, bias, True, None, None)
        return y * 2, *gradients, step - 1

    make = lambda: (torch.ones(2, 6, 3, device=device), torch.zeros(2, 6, 3, device=device))  # noqa: E731
    written, expected_written = make(), make()
    compiled = torch.compile(everything, fullgraph=True, backend=backend)
    found = compiled(x, weight, bias, dy, *written)
    expected = everything(x, weight, bias, dy, *expected_written)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(written, expected_written)
    assert written[0][..., 0].ne(2).any() and written[1].any()


def test_the_extension_module_and_kernels_compile(device):
    x, weight, bias, dy = tensors(device)

    def everything(x, weight, bias, dy, state):
        y, dx, final = torch.empty_like(x), torch.empty_like(x), torch.empty_like(state)
        dweight, dbias = torch.ones_like(weight), torch.ones_like(bias)
        extension.causal_conv1d_fwd(x, weight, bias, None, state, y, final, True)
        extension.causal_conv1d_bwd(x, weight, bias, dy, *NONE, dx, dweight, dbias, None, True)
        step, packed = torch.empty_like(x[..., 0]), x.new_empty(1, 6, 2)
        extension.causal_conv1d_update(x[..., 0], state, weight, bias, step, True, None, None)
        causeway.kernels.causal_conv1d_varlen_states(x[0].T, torch.tensor([0, 9], device=x.device), packed)
        return y, dx, final, dweight, dbias, step, packed

    states = [torch.ones(2, 6, 3, device=device) for _ in range(2)]
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    found, expected = (f(x, weight, bias, dy, s) for f, s in zip((compiled, everything), states))
    torch.testing.assert_close(found, expected)
    assert torch.equal(*states) and states[0][..., 0].eq(1).all() and states[0][..., 2].ne(1).any()


def test_operators_pass_pytorch_checks():
    x, weight, bias, dy = (t.double() for t in tensors("cpu"))
    check, ops = torch.library.opcheck, torch.ops.causeway
    new, states = torch.empty_like, torch.zeros(2, 6, 3).double()
    check(
        ops.causal_conv1d_forward_out.default,
        (x, weight, bias, states, None, None, dy, True, torch.zeros_like(x), new(states)),
    )
    outputs = [torch.zeros_like(t) for t in (x, weight, bias, states)]
    check(
        ops.causal_conv1d_backward_out.default, (x, weight, bias, dy, states, None, None, states.clone(), True, *outputs)
    )
    check(ops.causal_conv1d_update_out.default, (x, states, weight, bias, True, None, None, torch.zeros_like(x)))
    check(
        ops.causal_conv1d_varlen_states_out.default, (x[0].T, torch.tensor([0, 3, 9]), torch.zeros(2, 6, 4).double())
    )


def test_the_original_operators(device):
    x, weight, bias, dy = tensors(device)
    ops = torch.ops.DaoAILab
    y, dx, final = (torch.empty_like(t) for t in (x, x, x[..., :3]))
    ops._causal_conv1d_fwd_cpp(x, weight, bias, None, None, y, final, True)
    assert torch.equal(y, causeway.causal_conv1d_fn(x, weight, bias, activation="silu"))
    assert torch.equal(final, x[..., -3:])
    sums = torch.zeros_like(weight), torch.zeros_like(bias)
    cpp_functions._causal_conv1d_bwd_cpp(
        x=x, weight=weight, bias=bias, dout=dy, seq_idx=None, initial_states=None, dfinal_states=None, dx=dx,
        dweight=sums[0], dbias=sums[1], dinitial_states=None, silu_activation=True,
    )  # fmt: skip
    expected = cpp_functions.causal_conv1d_bwd_function(x, weight, bias, dy, *NONE, None, False, True)
    torch.testing.assert_close((dx, *sums), expected[:3])
    state, out = torch.zeros(2, 6, 3, device=device), torch.empty_like(x[..., 0])
    version = state._version
    ops._causal_conv1d_update_cpp(x[..., 0], state, weight, bias, out, True, None, None)
    assert torch.equal(out, y[..., 0]) and torch.equal(state[..., 2], x[..., 0]) and state._version > version
    arguments = (x, weight, bias, None, None, torch.zeros_like(x), None, True)
    torch.library.opcheck(ops._causal_conv1d_fwd_cpp.default, arguments)


def test_meta_tensors():
    x, weight, bias, dy = (t.to("meta") for t in tensors("cpu"))
    y = cpp_functions.causal_conv1d_fwd_function(x, weight, bias, *NONE, True)
    assert y.is_meta and y.shape == x.shape
    gradients = cpp_functions.causal_conv1d_bwd_function(x, weight, bias, dy, *NONE, None, False, True)
    assert [t.shape for t in gradients[:3]] == [x.shape, weight.shape, bias.shape] and gradients[3] is None
    state = torch.empty(2, 6, 3, device="meta")
    assert cpp_functions.causal_conv1d_update_function(x, state, weight, bias, True, None, None).is_meta
    with pytest.raises(RuntimeError, match="y is on cpu: expected meta, where x is"):
        causeway.kernels.causal_conv1d_forward(x, weight, *NONE, None, None, True, torch.empty(2, 6, 9), None)
    with pytest.raises(TypeError, match="weight is a NoneType"):
        causeway.kernels.causal_conv1d_forward(x, None, *NONE, None, None, True, y, None)


def test_a_dispatch_mode_sees_the_operators():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x, weight, bias, dy = tensors("cpu")
    with Watch():
        y = cpp_functions.causal_conv1d_fwd_function(x, weight, bias, *NONE, True)
        cpp_functions.causal_conv1d_bwd_function(x, weight, bias, dy, *NONE, None, False, True)
    assert torch.equal(y, causeway.causal_conv1d_fn(x, weight, bias, activation="silu"))
    assert "causeway.causal_conv1d_forward_out.default" in seen
    assert "causeway.causal_conv1d_backward_out.default" in seen


def test_a_compiled_call_of_tensors_without_a_graph(device):
    """Inference tensors have no version to count."""
    x, weight, bias, _ = tensors(device)
    function = lambda x: cpp_functions.causal_conv1d_fwd_function(x, weight, bias, *NONE, True)  # noqa: E731
    with torch.inference_mode():
        found = torch.compile(function, fullgraph=True, backend="aot_eager")(x.clone())
    assert torch.equal(found, function(x))


def test_autograd_is_told_of_what_is_written():
    x, weight, bias, dy = tensors("cpu")
    y, state, out = torch.empty_like(x), torch.zeros(2, 6, 3), torch.empty(2, 6)
    gradients = [torch.empty_like(t) for t in (x, weight, bias)]
    for _ in range(2):
        causeway.kernels.causal_conv1d_forward(x, weight, bias, *NONE, None, True, y, None)
        causeway.kernels.causal_conv1d_backward(x, weight, bias, dy, *NONE, None, True, *gradients, None)
        causeway.kernels.causal_conv1d_update(x[..., 0], state, weight, bias, True, None, None, out)
    assert [t._version for t in (y, *gradients, state, out)] == [2] * 6
    assert [t._version for t in (x, weight, bias, dy)] == [0] * 4


def test_only_tensors_are_outputs_of_kernels():
    x, weight = torch.randn(1, 2, 4), torch.randn(2, 3)
    with pytest.raises(TypeError, match="y is a bool: expected a torch.Tensor"):
        causeway.kernels.causal_conv1d_forward(x, weight, *NONE, None, None, True, True, None)
    with pytest.raises(TypeError, match="y is a NoneType: expected a torch.Tensor"):
        causeway.kernels.causal_conv1d_forward(x, weight, *NONE, None, None, True, None, None)


def test_masked_arrays_are_refused():
    x, weight = np.ones((1, 2, 4), np.float32), np.ones((2, 3), np.float32)
    masked = np.ma.masked_array(weight, mask=weight > 0)
    with pytest.raises(TypeError, match="weight is a numpy.ma.MaskedArray"):
        causeway.kernels.causal_conv1d_forward(x, masked, *NONE, None, None, True, np.empty_like(x), None)
