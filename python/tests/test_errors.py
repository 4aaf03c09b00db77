"""Bad input: the exception that PyTorch would raise, a sentence with the argument's name, nothing written."""

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402
import numpy as np  # noqa: E402

X, WEIGHT, BIAS = torch.randn(2, 4, 8), torch.randn(4, 3), torch.randn(4)
I32 = torch.int32

# (change of the base call, exception, words of its message)
FORWARD = [
    (dict(x=[1.0]), TypeError, "x is a list"),
    (dict(x=None), TypeError, "x is a NoneType"),
    (dict(x=X[0]), ValueError, "x has shape (4, 8)"),
    (dict(x=X.int()), TypeError, "x has dtype i32"),
    (dict(x=X.bool()), TypeError, "x has dtype torch.bool"),
    (dict(x=X.to(torch.complex64)), TypeError, "x has dtype torch.complex64"),
    (dict(x=X.to_sparse()), RuntimeError, "x cannot be read"),
    (dict(x=X[None, None]), ValueError, "x has"),
    (dict(weight=None), TypeError, "weight is a NoneType"),
    (dict(weight=WEIGHT[:3]), ValueError, "weight has dim 3: expected 4"),
    (dict(weight=WEIGHT[:, None]), ValueError, "weight has shape (4, 1, 3)"),
    (dict(weight=torch.randn(4, 257)), ValueError, "width 257"),
    (dict(weight=torch.randn(4, 0)), ValueError, "width 0"),
    (dict(weight=WEIGHT.double()), TypeError, "weight has dtype f64"),
    (dict(weight=WEIGHT.numpy()), TypeError, "weight is a ndarray"),
    (dict(bias=BIAS[:3]), ValueError, "bias has dim 3"),
    (dict(bias=BIAS.half()), TypeError, "bias has dtype f16"),
    (dict(seq_idx=torch.zeros(2, 8, dtype=torch.int64)), TypeError, "seq_idx has dtype i64"),
    (dict(seq_idx=torch.zeros(2, 7, dtype=I32)), ValueError, "seq_idx has seqlen 7"),
    (dict(initial_states=torch.zeros(2, 4, 3)), ValueError, "initial_states has length 3"),
    (dict(initial_states=torch.zeros(2, 4, 2).half()), TypeError, "initial_states has dtype f16"),
    (dict(final_states_out=torch.zeros(2, 4, 3)), ValueError, "final_states_out has length 3"),
    (dict(final_states_out=torch.zeros(1, 1, 1).expand(2, 4, 2)), RuntimeError, "final_states_out"),
    (dict(final_states_out=X[:, :, :2]), RuntimeError, "final_states_out shares memory with x"),
    (dict(activation="relu"), NotImplementedError, "activation is 'relu'"),
    (dict(cu_seqlens=torch.tensor([0, 8])), ValueError, "x has batch 2"),
    (dict(x=X[:1], cu_seqlens=torch.tensor([0, 9])), ValueError, "cu_seqlens ends at 9"),
    (dict(x=X[:1], cu_seqlens=torch.tensor([1, 8])), ValueError, "cu_seqlens[0] is 1"),
    (dict(x=X[:1], cu_seqlens=torch.tensor([0, 5, 3, 8])), ValueError, "cu_seqlens[2] is 3"),
    (dict(x=X[:1], cu_seqlens=torch.tensor([], dtype=I32)), ValueError, "cu_seqlens is empty"),
    (dict(x=X[:1], cu_seqlens=torch.tensor([0.0, 8.0])), TypeError, "cu_seqlens has dtype f32"),
    (dict(residual=X[:, :, :7]), ValueError, "residual has seqlen 7"),
]


def describe(case):
    change, exception, _ = case
    return "-".join(change) + "-" + exception.__name__


@pytest.mark.parametrize("needs_gradient", [False, True], ids=["", "with-gradient"])
@pytest.mark.parametrize("case", FORWARD, ids=describe)
def test_forward(case, needs_gradient):
    change, exception, words = case
    arguments = dict(x=X, weight=WEIGHT, bias=BIAS) | change
    if needs_gradient and isinstance(arguments["bias"], torch.Tensor):
        arguments["bias"] = arguments["bias"].clone().requires_grad_()
    written = arguments.get("final_states_out")
    before = None if written is None else written.clone()
    with pytest.raises(exception) as raised:
        causeway.causal_conv1d_fn(**arguments)
    assert words in str(raised.value)
    assert written is None or torch.equal(written, before)


UPDATE = [
    (dict(x=torch.randn(2)), ValueError, "x has shape (2,)"),
    (dict(conv_state=torch.zeros(2, 4, 1)), ValueError, "conv_state holds 1 positions"),
    (dict(conv_state=torch.zeros(3, 4, 2)), ValueError, "conv_state has batch 3"),
    (dict(conv_state=torch.zeros(2, 4, 2).half()), TypeError, "conv_state has dtype f16"),
    (dict(conv_state=None), TypeError, "conv_state is a NoneType"),
    (dict(conv_state=torch.zeros(4, 2).expand(2, 4, 2)), RuntimeError, "conv_state"),
    (
        dict(conv_state=torch.zeros(2, 4, 2, requires_grad=True)),
        RuntimeError,
        "conv_state requires a gradient",
    ),
    (dict(cache_seqlens=torch.zeros(2)), TypeError, "cache_seqlens has dtype f32"),
    (dict(cache_seqlens=torch.tensor([0, -1], dtype=I32)), ValueError, "cache_seqlens[1] is -1"),
    (dict(conv_state_indices=torch.tensor([0, 2], dtype=I32)), ValueError, "conv_state_indices[1] is 2"),
    (dict(conv_state_indices=torch.tensor([1, 1], dtype=I32)), ValueError, "are both 1"),
    (dict(activation=True), NotImplementedError, "activation is True"),
]


@pytest.mark.parametrize("case", UPDATE, ids=describe)
def test_update(case):
    change, exception, words = case
    arguments = dict(x=X[:, :, 0], conv_state=torch.ones(2, 4, 2), weight=WEIGHT) | change
    before = None if arguments["conv_state"] is None else arguments["conv_state"].clone()
    with pytest.raises(exception) as raised:
        causeway.causal_conv1d_update(**arguments)
    assert words in str(raised.value)
    assert before is None or torch.equal(arguments["conv_state"], before)


def test_a_state_inside_of_x_is_refused():
    memory = torch.randn(2, 4, 10)
    with pytest.raises(RuntimeError, match="conv_state shares memory with x"):
        causeway.causal_conv1d_update(memory[:, :, :3], memory[:, :, 2:5], WEIGHT)


def test_neighbours_in_one_allocation_are_not_overlaps():
    memory = torch.randn(2, 10, 4)
    x, conv_state = memory[:, :8].transpose(1, 2), memory[:, 8:].transpose(1, 2)
    expected_state = conv_state.clone()
    expected = causeway.causal_conv1d_update(x.clone(), expected_state, WEIGHT)
    assert torch.equal(causeway.causal_conv1d_update(x, conv_state, WEIGHT), expected)
    assert torch.equal(conv_state, expected_state)


def test_a_lazily_negated_tensor_is_named():
    x = torch.randn(2, 4, 8, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    with pytest.raises(ValueError, match=r"x\.resolve_neg\(\)"):
        causeway.causal_conv1d_fn(x, WEIGHT)


def test_another_kind_of_device_is_named():
    with pytest.raises((NotImplementedError, RuntimeError), match="weight is on|meta"):
        causeway.causal_conv1d_fn(X, WEIGHT.to("meta"))


@pytest.mark.gpu
def test_tensors_on_different_devices():
    with pytest.raises(RuntimeError, match="weight is on the host: expected cuda:0"):
        causeway.causal_conv1d_fn(X.cuda(), WEIGHT)
    with pytest.raises(RuntimeError, match="bias is on cuda:0"):
        causeway.causal_conv1d_fn(X, WEIGHT, BIAS.cuda())


GEMM = [
    (dict(a=torch.randn(2, 3)), TypeError, "a has dtype f32"),
    (dict(a=torch.randn(3).half()), ValueError, "a has shape (3,)"),
    (dict(b=torch.randn(4, 2).half()), ValueError, "b has K 4: expected 3"),
    (dict(b=torch.randn(3, 2).bfloat16()), TypeError, "b has dtype bf16"),
    (dict(algorithm="best"), ValueError, "algorithm is"),
    (dict(b=np.zeros((3, 2), np.float16)), TypeError, "b is a ndarray"),
    (dict(b=None), TypeError, "b is a NoneType"),
]


@pytest.mark.parametrize("case", GEMM, ids=describe)
def test_gemm(case):
    change, exception, words = case
    with pytest.raises(exception) as raised:
        causeway.gemm(**(dict(a=torch.randn(2, 3).half(), b=torch.randn(3, 2).half()) | change))
    assert words in str(raised.value)
