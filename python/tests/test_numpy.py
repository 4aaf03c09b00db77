"""NumPy arrays in and out, with PyTorch neither installed nor imported."""

import subprocess
import sys

import causeway
import numpy as np
import pytest


def reference(x, weight, bias=None, states=None, silu=False):
    """In float64."""
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    before = weight.shape[1] - 1
    states = np.zeros((*x.shape[:2], before)) if states is None else states.astype(np.float64)
    history = np.concatenate([states, x], axis=2)
    y = sum(weight[:, w, None] * history[..., w : w + x.shape[2]] for w in range(before + 1))
    y = y if bias is None else y + bias.astype(np.float64)[:, None]
    return y / (1 + np.exp(-y)) if silu else y


def draw(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype, tolerance", [("f4", 1e-6), ("f2", 2e-3), ("f8", 1e-14)])
@pytest.mark.parametrize("order", ["first", "last", "negative"])
def test_forward(dtype, tolerance, order):
    x, weight, bias = draw(2, 5, 9, dtype=dtype), draw(5, 4, dtype=dtype), draw(5, dtype=dtype)
    states = draw(2, 5, 3, dtype=dtype)
    if order == "last":
        x = np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    if order == "negative":
        x = x[:, ::-1, ::-1]
    y, final = causeway.causal_conv1d_fn(x, weight, bias, None, states, True, activation="silu")
    np.testing.assert_allclose(y, reference(x, weight, bias, states, True), atol=tolerance, rtol=tolerance)
    assert y.dtype == x.dtype and isinstance(y, np.ndarray)
    np.testing.assert_array_equal(final, x[..., -3:])
    if order == "last":
        assert y.strides == x.strides


def test_packed_sequences_and_indices():
    x, weight = draw(1, 3, 10), draw(3, 4)
    ends = np.array([0, 4, 4, 10])
    y, final = causeway.causal_conv1d_fn(x, weight, return_final_states=True, cu_seqlens=ends)
    expected = np.concatenate([reference(x[..., a:b], weight) for a, b in [(0, 4), (4, 10)]], axis=2)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    assert final.shape == (3, 3, 3) and not final[1].any()
    index = np.array([[0] * 4 + [1] * 6], np.int32)
    np.testing.assert_array_equal(causeway.causal_conv1d_fn(x, weight, seq_idx=index), y)
    states = causeway.causal_conv1d_varlen_states(np.ascontiguousarray(x[0].T), ends, 3)
    np.testing.assert_array_equal(states, final)


def test_update_follows_forward():
    x, weight = draw(2, 3, 8), draw(3, 4)
    expected = causeway.causal_conv1d_fn(x, weight, activation="swish")
    state = np.zeros((2, 3, 3), np.float32)
    ring = np.zeros((2, 3, 5), np.float32)
    for t in range(8):
        y = causeway.causal_conv1d_update(x[..., t], state, weight, activation="silu")
        np.testing.assert_allclose(y, expected[..., t], rtol=1e-5, atol=1e-6)
        seen = np.full(2, t, np.int32)
        again = causeway.causal_conv1d_update(x[..., t], ring, weight, None, "silu", seen)
        np.testing.assert_array_equal(again, y)
    np.testing.assert_array_equal(state, x[..., -3:])


def test_references_agree():
    x, weight, bias = draw(2, 3, 8), draw(3, 4), draw(3)
    y, final = causeway.causal_conv1d_ref(x, weight, bias, return_final_states=True, activation="silu")
    found, found_final = causeway.causal_conv1d_fn(
        x, weight, bias, return_final_states=True, activation="silu"
    )
    np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found_final, final)
    seq_idx = np.array([[0, 0, 1, -1, -1, 2, 2, 2], [5, 5, 5, 5, 6, 6, -3, 6]], np.int32)
    states = draw(2, 3, 3)
    np.testing.assert_allclose(
        causeway.causal_conv1d_fn(x, weight, bias, seq_idx, states, activation="silu"),
        causeway.causal_conv1d_ref(x, weight, bias, states, activation="silu", seq_idx=seq_idx),
        rtol=1e-5,
        atol=1e-6,
    )
    for seen in (None, np.array([4, 9], np.int32)):
        states = [draw(2, 3, 6) for _ in range(2)]
        expected = causeway.causal_conv1d_update_ref(x[..., :2], states[0], weight, bias, "silu", seen)
        found = causeway.causal_conv1d_update(x[..., :2], states[1], weight, bias, "silu", seen)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(*states)


@pytest.mark.parametrize("algorithm", ["fast", "exact"])
def test_gemm_and_gradients(algorithm):
    a, b, c = (draw(*shape, dtype=np.float16) for shape in [(6, 7), (7, 5), (6, 5)])
    calls = {
        "gemm": (causeway.gemm(a, b, algorithm=algorithm), a, b),
        "grad_a": (causeway.gemm_grad_a(c, b, algorithm=algorithm), c, b.T),
        "grad_b": (causeway.gemm_grad_b(c, a, algorithm=algorithm), a.T, c),
    }
    for found, left, right in calls.values():
        expected = left.astype(np.float64) @ right.astype(np.float64)
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)
    both = causeway.gemm_grad_ab(c, a, b, algorithm=algorithm)
    np.testing.assert_array_equal(both[0], calls["grad_a"][0])
    np.testing.assert_array_equal(both[1], calls["grad_b"][0])


def test_bfloat16_of_ml_dtypes():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x, weight = draw(2, 5, 9).astype(bfloat16), draw(5, 4)
    y = causeway.causal_conv1d_fn(x, weight)
    assert y.dtype == bfloat16
    np.testing.assert_allclose(y.astype(np.float64), reference(x, weight), rtol=8e-3, atol=8e-3)


X = draw(2, 3, 8)
PACKED = np.zeros(2 * 3 * 8, np.dtype([("value", "<f4"), ("more", "u1")]))


@pytest.mark.parametrize(
    "change, exception, words",
    [
        (dict(x=X.tolist()), TypeError, "x is a list"),
        (dict(x=X.astype(">f4")), ValueError, "byte order"),
        (dict(x=PACKED["value"].reshape(2, 3, 8)), ValueError, "not aligned"),
        (dict(x=X.astype(np.int16)), TypeError, "x has dtype int16"),
        (dict(x=X[0]), ValueError, "x has shape (3, 8)"),
        (dict(weight=draw(4, 4)), ValueError, "x has shape (2, 3, 8) and weight has shape (4, 4): expected the same dim"),
        (dict(weight=draw(3, 4).tolist()), TypeError, "weight is a list: expected a numpy.ndarray, as x is"),
        (dict(weight=None), TypeError, "weight is a NoneType: expected a numpy.ndarray, as x is"),
        (dict(activation="gelu"), NotImplementedError, "activation"),
        (
            dict(final_states_out=np.broadcast_to(np.float32(0), (2, 3, 3))),
            ValueError,
            "final_states_out is read-only",
        ),
    ],
)
def test_errors(change, exception, words):
    with pytest.raises(exception) as raised:
        causeway.causal_conv1d_fn(**(dict(x=X, weight=draw(3, 4)) | change))
    assert words in str(raised.value)


def test_a_tensor_of_pytorch_beside_an_array():
    torch = pytest.importorskip("torch")
    words = r"weight is a torch\.Tensor and x a numpy\.ndarray: .*pass torch\.from_numpy\(x\), or weight\.numpy\(\)"
    with pytest.raises(TypeError, match=words):
        causeway.causal_conv1d_fn(X, torch.nn.Parameter(torch.ones(3, 4)))
    with pytest.raises(TypeError, match="b is a torch.Tensor and a a numpy.ndarray"):
        causeway.gemm(draw(3, 4, dtype="f2"), torch.ones(4, 2).half())


def test_masked_arrays_are_refused():
    masked = lambda array: np.ma.masked_array(array, mask=array > 0)  # noqa: E731
    x, weight, state = X, draw(3, 4), np.zeros((2, 3, 3), np.float32)
    half = draw(3, 4, dtype="f2")
    calls = {
        "x": lambda: causeway.causal_conv1d_fn(masked(x), weight),
        "residual": lambda: causeway.causal_conv1d_fn(x, weight, residual=masked(x)),
        "conv_state": lambda: causeway.causal_conv1d_update(x[..., 0], masked(state), weight),
        "cu_seqlens": lambda: causeway.causal_conv1d_varlen_states(x[0].T, masked(np.array([0, 8])), 2),
        "a": lambda: causeway.gemm(masked(half), half.T),
        "grad_c": lambda: causeway.gemm_grad_b(masked(half), half),
    }
    for name, call in calls.items():
        words = rf"{name} is a numpy\.ma\.MaskedArray, .* pass {name}\.filled\(0\)"
        with pytest.raises(TypeError, match=words):
            call()


PROGRAM = """
import sys
sys.modules["torch"] = None                      # as if it were not installed
import causeway
assert "numpy" not in sys.modules
import numpy
y = causeway.causal_conv1d_fn(numpy.ones((2, 64, 4096), "f4"), numpy.ones((64, 4), "f4"))
assert y[0, 0, :5].tolist() == [1, 2, 3, 4, 4]
print("fine")
"""


def test_without_torch():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr
