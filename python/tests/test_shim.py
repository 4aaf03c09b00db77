"""The drop-in: the original's import names, parameter names and calling conventions."""

import inspect
import sys

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402


@pytest.fixture(autouse=True)
def shim(root, monkeypatch):
    """The drop-in's source directory on the path."""
    monkeypatch.syspath_prepend(str(root / "shim"))
    yield
    for name in [name for name in sys.modules if name.startswith("causal_conv1d")]:
        del sys.modules[name]


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


def test_parameter_names():
    from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
    from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states
    from causal_conv1d.cpp_functions import causal_conv1d_bwd_function

    names = lambda f: list(inspect.signature(f).parameters)  # noqa: E731
    assert names(causal_conv1d_fn)[:8] == [
        "x", "weight", "bias", "seq_idx", "initial_states", "return_final_states", "final_states_out", "activation",
    ]  # fmt: skip
    assert names(causal_conv1d_update) == [
        "x", "conv_state", "weight", "bias", "activation", "cache_seqlens", "conv_state_indices",
    ]  # fmt: skip
    assert names(causal_conv1d_varlen_states) == ["x", "cu_seqlens", "state_len"]
    assert names(causal_conv1d_bwd_function)[3] == "dout"


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


def test_the_distribution_has_every_module(root, tmp_path):
    import subprocess
    import zipfile

    pytest.importorskip("hatchling", reason="hatchling, which builds the drop-in, is not installed")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", tmp_path, root / "shim"], check=True)
    (wheel,) = tmp_path.glob("causal_conv1d-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    modules = ["__init__", "causal_conv1d_interface", "causal_conv1d_varlen", "cpp_functions"]
    expected = ["causal_conv1d_cuda.py", *(f"causal_conv1d/{module}.py" for module in modules)]
    assert set(expected) <= set(names)


@pytest.mark.parametrize("version, refused", [("1.5.0", True), ("1.7.0+causeway", False)])
def test_it_does_not_replace_the_original(root, tmp_path, monkeypatch, version, refused):
    import contextlib
    import importlib.util
    import sysconfig

    pytest.importorskip("hatchling", reason="hatchling, which builds the drop-in, is not installed")
    installed = tmp_path / f"causal_conv1d-{version}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: causal-conv1d\nVersion: {version}\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    spec = importlib.util.spec_from_file_location("refuse", root / "shim" / "refuse.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hook = module.RefuseToReplace(str(root / "shim"), {}, None, None, str(tmp_path), "wheel")
    refusal = pytest.raises(
        SystemExit, match="causal-conv1d 1.5.0 is installed in .*pip uninstall causal-conv1d"
    )
    with refusal if refused else contextlib.nullcontext():
        hook.initialize("standard", {})
