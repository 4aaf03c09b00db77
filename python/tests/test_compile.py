"""torch.compile, export, and the operators that they see."""

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402


@pytest.fixture(autouse=True)
def fresh_compiler():
    """No guards and caches of another test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def block(x, weight, bias, gate):
    """Something to fuse before and after the convolution."""
    return causeway.causal_conv1d_fn(x * gate, weight, bias, activation="silu") * gate + 1


def tensors(batch, seqlen, device, dtype=torch.float32):
    torch.manual_seed(batch * seqlen)
    x = torch.randn(batch, seqlen, 6, device=device, dtype=dtype).transpose(1, 2).requires_grad_()
    weight, bias = torch.randn(6, 4, device=device), torch.randn(6, device=device)
    gate = torch.randn(batch, 6, 1, device=device, dtype=dtype)
    return x, weight.requires_grad_(), bias.requires_grad_(), gate


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_fullgraph_with_dynamic_shapes_and_gradients(device, backend):
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=backend)
    for batch, seqlen in [(2, 8), (3, 17), (5, 64)]:
        args = tensors(batch, seqlen, device)
        found, expected = compiled(*args), block(*args)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        assert found.stride() == expected.stride()
        got = torch.autograd.grad(found.sin().sum(), args[:3])
        want = torch.autograd.grad(expected.sin().sum(), args[:3])
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_states_autocast_and_out_tensors_compile(device):
    def step(x, weight, bias, states, out):
        with torch.autocast(device, dtype=torch.bfloat16):
            y, final = causeway.causal_conv1d_fn(x, weight, bias, None, states, True, out, "silu", residual=x)
        return y * 2, final

    x, weight, bias, _ = tensors(2, 8, device)
    states = torch.randn(2, 6, 3, device=device)
    found_out, expected_out = (torch.zeros(2, 6, 3, device=device, dtype=torch.bfloat16) for _ in range(2))
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    found = compiled(x, weight, bias, states, found_out)
    expected = step(x, weight, bias, states, expected_out)
    torch.testing.assert_close(found, expected)
    assert torch.equal(found_out, expected_out) and found_out.any()


def test_update_compiles_and_changes_the_state(device):
    def decode(x, conv_state, weight):
        return causeway.causal_conv1d_update(x + 1, conv_state, weight, activation="silu") * 2

    x, weight = torch.randn(2, 6, device=device), torch.randn(6, 4, device=device)
    states = [torch.randn(2, 6, 3, device=device)] * 2
    states = [state.clone() for state in states]
    compiled = torch.compile(decode, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        assert torch.equal(compiled(x, states[0], weight), decode(x, states[1], weight))
    assert torch.equal(*states)


@pytest.mark.parametrize("is_whole", [True, False])
def test_forward_mode_is_refused_in_words(is_whole):
    """PyTorch has no rule for an operator's tangent, and takes 0 for it."""
    x, weight = torch.randn(2, 6, 8), torch.randn(6, 4)
    for function in (
        lambda x: causeway.causal_conv1d_fn(x, weight),
        lambda x: causeway.gemm(x[0].half(), x[0].half().T),
    ):
        tangent = torch.compile(
            lambda x: torch.func.jvp(function, (x,), (x,))[1], fullgraph=is_whole, backend="aot_eager"
        )
        kinds = (NotImplementedError, torch._dynamo.exc.Unsupported)
        with pytest.raises(kinds, match=None if is_whole else "no forward-mode gradient"):
            tangent(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_forward_mode_around_a_compiled_function_is_refused(backend):
    """A compiler leaves calls with such tensors to Python, and compiles what these call."""
    import torch.autograd.forward_ad as forward_ad

    x, weight = torch.randn(2, 6, 8), torch.randn(6, 4)
    for function in (
        lambda x: causeway.causal_conv1d_fn(x, weight),
        lambda x: causeway.gemm(x[0].half(), x[0].half().T),
    ):
        torch.compiler.reset()
        compiled = torch.compile(function, backend=backend)
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode gradient"):
            compiled(forward_ad.make_dual(x, x))
        with pytest.raises(NotImplementedError, match="no forward-mode gradient"):
            torch.func.jvp(compiled, (x,), (x,))


def test_a_backward_pass_compiles(device):
    """Compiled autograd traces the backward pass of an eager forward."""
    from torch._dynamo import compiled_autograd

    x, weight, bias, gate = tensors(2, 8, device)
    a, b = (torch.randn(*s, device=device).half().requires_grad_() for s in [(8, 5), (5, 3)])
    leaves = x, weight, bias, a, b

    def loss():
        plain = block(x, weight, bias, gate)
        y, final = causeway.causal_conv1d_fn(x, weight, bias, None, x[..., :3] * 2, True, residual=x)
        return plain.sin().sum() + y.cos().sum() + final.sum() + causeway.gemm(a, b).sum()

    expected = torch.autograd.grad(loss(), leaves)
    # PyTorch 2.4 has it under another name.
    enable = getattr(compiled_autograd, "_enable", None) or compiled_autograd.enable
    with enable(torch.compile(fullgraph=True, backend="aot_eager")):
        loss().backward()
    torch.testing.assert_close([leaf.grad for leaf in leaves], list(expected))


def test_varlen_states_and_gemm_compile(device):
    def both(x, ends, a, b):
        return causeway.causal_conv1d_varlen_states(x, ends, 3), causeway.gemm(a, b)

    x, ends = torch.randn(9, 4, device=device), torch.tensor([0, 2, 9], device=device)
    a, b = (torch.randn(*s, device=device).half().requires_grad_() for s in [(8, 5), (5, 3)])
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    found, expected = compiled(x, ends, a, b), both(x, ends, a, b)
    torch.testing.assert_close(found, expected)
    lengths = torch.compile(causeway.causal_conv1d_varlen_states, fullgraph=True, dynamic=True, backend="aot_eager")
    assert [lengths(x, ends, length).shape[-1] for length in (3, 5, 9)] == [3, 5, 9]
    got = torch.autograd.grad(found[1].sum(), (a, b))
    torch.testing.assert_close(got, torch.autograd.grad(expected[1].sum(), (a, b)))


def test_the_first_call_may_be_compiled(tmp_path):
    """With PyTorch imported after causeway, and no call before."""
    import subprocess
    import sys

    program = tmp_path / "program.py"
    program.write_text(
        "import causeway, torch\n"
        "f = torch.compile(lambda x, w: causeway.causal_conv1d_fn(x, w), fullgraph=True, backend='aot_eager')\n"
        "print(f(torch.ones(1, 2, 4), torch.ones(2, 3))[0, 0].tolist())\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert done.stdout == "[1.0, 2.0, 3.0, 3.0]\n", done.stderr


def test_export_keeps_the_operator():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(6, 4))

        def forward(self, x):
            return causeway.causal_conv1d_fn(x, self.weight, activation="silu")

    model, x = Model(), torch.randn(2, 6, 8)
    exported = torch.export.export(model, (x,))
    assert any("causal_conv1d_forward" in str(node.target) for node in exported.graph.nodes)
    torch.testing.assert_close(exported.module()(x), model(x))


WRONG = {
    "state": (causeway.nn.CausalConv1d(6, 4), (torch.zeros(2, 6, 8), torch.zeros(2, 6, 4)), "length 4: expected 3, the width of weight less one"),
    "step": (causeway.nn.CausalConv1d(6, 4).step, (torch.zeros(2, 6), torch.zeros(2, 6, 2)), "holds 2 positions"),
    "packed": (
        lambda packed, weight: causeway.causal_conv1d_gated_packed(packed, weight, order="xB"),
        (torch.zeros(2, 18, 8), torch.zeros(6, 4)),
        r"packed has shape \(2, 18, 8\): expected \(batch, 2 \* 6, seqlen\)",
    ),
    "sizes": (
        lambda x, weight: causeway.causal_conv1d_qkv(x, weight, sizes=(6, 6), head_dim=3),
        (torch.zeros(2, 18, 8), torch.zeros(18, 4)),
        r"sizes is \(6, 6\): expected three ints \(q, k, v\), whose sum is the channels of x, 18",
    ),
    "reference": (causeway.causal_conv1d_ref, (torch.zeros(2, 6, 8), torch.zeros(5, 4)), "expected the same dim in both"),
    "type": (causeway.causal_conv1d_fn, (torch.zeros(2, 6, 8), 3), "weight is an int: expected a torch.Tensor, as x is"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_of_compiled_calls(name):
    """In the words of an eager call, whatever exception the compiler makes of it."""
    function, arguments, words = WRONG[name]
    with pytest.raises(Exception, match=words):
        torch.compile(function, backend="eager")(*arguments)


def test_operators_pass_pytorch_checks():
    x, weight, bias = (t.double() for t in (torch.randn(2, 6, 8), torch.randn(6, 4), torch.randn(6)))
    check, ops = torch.library.opcheck, torch.ops.causeway
    leaf = lambda t: t.clone().requires_grad_()  # noqa: E731
    none = (None, None, None, None)
    check(ops.causal_conv1d_forward.default, (leaf(x), leaf(weight), leaf(bias), *none, True, True))
    check(
        ops.causal_conv1d_update.default, (x, torch.zeros(2, 6, 4).double(), weight, bias, True, None, None)
    )
    check(ops.causal_conv1d_varlen_states.default, (x[0].T, torch.tensor([0, 3, 8]), 4))
    check(ops.gemm.default, (leaf(torch.randn(4, 5).half()), leaf(torch.randn(5, 3).half()), "exact"))


def test_fake_and_meta_tensors():
    y = causeway.causal_conv1d_fn(torch.empty(2, 6, 8, device="meta"), torch.empty(6, 4, device="meta"))
    assert y.is_meta and y.shape == (2, 6, 8)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_forward_mode_after_a_call_without_it_is_refused(backend):
    import torch.autograd.forward_ad as forward_ad

    x, weight = torch.randn(2, 6, 8), torch.randn(6, 4)
    torch.compiler.reset()
    compiled = torch.compile(causeway.causal_conv1d_fn, backend=backend)
    compiled(x, weight)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode gradient"):
        compiled(forward_ad.make_dual(x, x), weight)


def test_meta_tensors_under_autocast_and_compiled():
    x, weight = torch.empty(2, 6, 8, device="meta"), torch.empty(6, 4, device="meta")
    with torch.autocast("cpu", torch.bfloat16):
        assert causeway.causal_conv1d_fn(x, weight).shape == x.shape
    assert torch.compile(causeway.causal_conv1d_fn, fullgraph=True, backend="aot_eager")(x, weight).is_meta
    exported = torch.export.export(causeway.nn.CausalConv1d(6, 4, device="meta"), (x,))
    assert exported.module()(x).is_meta


@pytest.mark.parametrize("strict", [False, True])
def test_a_batch_of_new_states_stays_dynamic(strict):
    block = causeway.nn.CausalConv1d(6, 4)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = block

        def forward(self, x):
            return self.block(x, self.block.new_state(x.shape[0]), return_state=True)

    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    exported = torch.export.export(Model(), (torch.randn(3, 6, 8),), dynamic_shapes=shapes, strict=strict)
    x = torch.randn(5, 6, 8)
    torch.testing.assert_close(exported.module()(x), Model()(x))
