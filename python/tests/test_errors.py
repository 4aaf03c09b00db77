"""Bad input: the exception that PyTorch would raise, a sentence with the argument's name, nothing written."""

import functools
import re
import subprocess
import sys

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
    (dict(x=X.int()), TypeError, "x has dtype int32"),
    (dict(x=X.bool()), TypeError, "x has dtype bool"),
    (
        dict(x=X.to(torch.complex64)),
        TypeError,
        "x has dtype complex64: expected float32, float16, bfloat16, or float64 on a CPU",
    ),
    (dict(x=X.to_sparse()), RuntimeError, "x has layout torch.sparse_coo: expected torch.strided; pass x.to_dense()"),
    (dict(x=X.to_sparse_csr()), RuntimeError, "x has layout torch.sparse_csr: expected torch.strided; pass x.to_dense()"),
    (dict(weight=WEIGHT.to_sparse()), RuntimeError, "pass weight.to_dense()"),
    (dict(x=X[None, None]), ValueError, "x has"),
    (dict(weight=None), TypeError, "weight is a NoneType"),
    (
        dict(weight=WEIGHT[:3]),
        ValueError,
        "x has shape (2, 4, 8) and weight has shape (3, 3): expected the same dim in both, the second axis of x and the first of weight",
    ),
    (
        dict(weight=WEIGHT[:, None]),
        ValueError,
        "weight has shape (4, 1, 3): expected (dim, width); for the (dim, 1, width) of a torch.nn.Conv1d, pass weight[:, 0]",
    ),
    (dict(weight=torch.randn(4, 257)), ValueError, "width 257"),
    (dict(weight=torch.randn(4, 0)), ValueError, "width 0"),
    (dict(weight=WEIGHT.double()), TypeError, "weight has dtype float64"),
    (dict(weight=WEIGHT.numpy()), TypeError, "weight is an ndarray: expected a torch.Tensor, as x is; pass torch.from_numpy(weight)"),
    (dict(weight=3), TypeError, "weight is an int: expected a torch.Tensor, as x is"),
    (dict(bias=BIAS.numpy()), TypeError, "pass torch.from_numpy(bias)"),
    (dict(bias=BIAS[:3]), ValueError, "bias has dim 3"),
    (dict(bias=BIAS.half()), TypeError, "bias has dtype float16"),
    (dict(seq_idx=torch.zeros(2, 8, dtype=torch.int64)), TypeError, "seq_idx has dtype int64"),
    (dict(seq_idx=torch.zeros(2, 8, dtype=torch.int8)), TypeError, "has dtype int8: expected int32"),
    (dict(seq_idx=torch.zeros(2, 7, dtype=I32)), ValueError, "seq_idx has seqlen 7"),
    (dict(initial_states=torch.zeros(2, 4, 3)), ValueError, "initial_states has length 3"),
    (dict(initial_states=torch.zeros(2, 4, 2).half()), TypeError, "initial_states has dtype float16"),
    (dict(final_states_out=torch.zeros(2, 4, 3)), ValueError, "final_states_out has length 3"),
    (dict(final_states_out=torch.zeros(1, 1, 1).expand(2, 4, 2)), RuntimeError, "final_states_out"),
    (dict(final_states_out=X[:, :, :2]), RuntimeError, "final_states_out shares memory with x"),
    (dict(activation="relu"), NotImplementedError, "activation is 'relu'"),
    (
        dict(return_final_states=X[:, :, :2]),
        TypeError,
        "return_final_states is a Tensor of shape (2, 4, 2): expected True or False",
    ),
    (dict(return_final_states=X[:1, :1, :1]), TypeError, "return_final_states is a Tensor of shape (1, 1, 1)"),
    (dict(cu_seqlens=torch.tensor([0, 8])), ValueError, "x has batch 2"),
    (dict(x=X[:1], cu_seqlens=torch.tensor([0, 9])), ValueError, "cu_seqlens ends at 9"),
    (dict(x=X[:1], cu_seqlens=torch.tensor([1, 8])), ValueError, "cu_seqlens[0] is 1"),
    (dict(x=X[:1], cu_seqlens=torch.tensor([0, 5, 3, 8])), ValueError, "cu_seqlens[2] is 3"),
    (dict(x=X[:1], cu_seqlens=torch.tensor([], dtype=I32)), ValueError, "cu_seqlens is empty"),
    (dict(x=X[:1], cu_seqlens=torch.tensor([0.0, 8.0])), TypeError, "cu_seqlens has dtype float32"),
    (dict(residual=X[:, :, :7]), ValueError, "residual has seqlen 7"),
]


PACKED = torch.randn(2, 12, 8)


@pytest.mark.parametrize("activation", [np.ones(3), torch.ones(3), [1], 1.0], ids=["array", "tensor", "list", "float"])
def test_what_is_no_name_of_an_activation(activation):
    """An array, which does not say whether it equals a name, among them."""
    for x, weight, packed in ((X, WEIGHT, PACKED), (X.numpy(), WEIGHT.numpy(), PACKED.numpy())):
        for call in [
            lambda: causeway.causal_conv1d_fn(x, weight, activation=activation),
            lambda: causeway.causal_conv1d_gated(x, x, x, weight, activation=activation),
            lambda: causeway.causal_conv1d_gated_packed(packed, weight, activation=activation),
            lambda: causeway.causal_conv1d_qkv((x, x, x), (weight,) * 3, head_dim=2, activation=activation),
        ]:
            with pytest.raises(NotImplementedError, match="^activation is "):
                call()


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize(
    "function, tensors, options",
    [
        (causeway.causal_conv1d_fn, (X, WEIGHT), {}),
        (causeway.causal_conv1d_gated, (X, X, X, WEIGHT), {}),
        (causeway.causal_conv1d_gated_packed, (PACKED, WEIGHT), {}),
        (causeway.causal_conv1d_qkv, (PACKED, torch.randn(12, 3)), dict(sizes=(4, 4, 4), head_dim=2)),
        (causeway.parallel.causal_conv1d_fn, (X, WEIGHT), {}),
    ],
)
def test_states_where_a_flag_belongs(function, tensors, options, library):
    """As of a call that meant final_states_out, a place further."""
    if function is causeway.parallel.causal_conv1d_fn and library == "numpy":
        pytest.skip("of PyTorch alone")
    given = [tensor.numpy() if library == "numpy" else tensor for tensor in (*tensors, torch.zeros(2, 4, 2))]
    with pytest.raises(TypeError, match=r"return_final_states is an? \w+ of shape \(2, 4, 2\): expected True or False"):
        function(*given[:-1], return_final_states=given[-1], **options)


def as_flag(value):
    """Calls with a flag of this value: of a function, of a module that is made, and of its forward pass."""
    modules = causeway.nn.CausalConv1d(4, 3), causeway.nn.GatedShortConv(8, 3), causeway.nn.QKVShortConv((2, 2, 4), 2, 3)
    return [
        ("return_final_states", lambda: causeway.causal_conv1d_fn(X, WEIGHT, return_final_states=value)),
        ("return_final_states", lambda: causeway.causal_conv1d_fn(X.numpy(), WEIGHT.numpy(), return_final_states=value)),
        ("round_products", lambda: causeway.causal_conv1d_gated(X, X, X, WEIGHT, round_products=value)),
        ("round_products", lambda: causeway.causal_conv1d_gated_update(*[X] * 3, torch.zeros(2, 4, 2), WEIGHT, round_products=value)),
        ("round_products", lambda: causeway.nn.GatedShortConv(8, 3, round_products=value)),
        ("bias", lambda: causeway.nn.CausalConv1d(8, 3, bias=value)),
        *(("return_state", functools.partial(module, X, return_state=value)) for module in modules),
    ]


@pytest.mark.parametrize("value", ["no", "", 2, 1.0, []])
def test_what_is_no_flag(value):
    for name, function in as_flag(value):
        with pytest.raises(TypeError, match=rf"^{name} is {re.escape(repr(value))}: expected True or False$"):
            function()


@pytest.mark.parametrize("value", [True, 1, np.True_, torch.tensor(True), False, 0, np.False_, torch.tensor(False), None])
def test_what_counts_as_a_flag(value):
    for name, function in as_flag(value):
        found = function()
        if name == "return_final_states":
            assert isinstance(found, tuple) == bool(value)


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
    (dict(conv_state=torch.zeros(2, 4, 2).half()), TypeError, "conv_state has dtype float16"),
    (dict(conv_state=None), TypeError, "conv_state is a NoneType"),
    (dict(conv_state=torch.zeros(4, 2).expand(2, 4, 2)), RuntimeError, "conv_state"),
    (
        dict(conv_state=torch.zeros(2, 4, 2, requires_grad=True)),
        RuntimeError,
        "conv_state requires a gradient",
    ),
    (dict(cache_seqlens=torch.zeros(2)), TypeError, "cache_seqlens has dtype float32"),
    (dict(cache_seqlens=torch.tensor([0, -1], dtype=I32)), ValueError, "cache_seqlens[1] is -1"),
    (
        dict(conv_state_indices=torch.tensor([0, 2], dtype=I32)),
        ValueError,
        "conv_state_indices[1] is 2: expected 0 to 1, the rows of conv_state, or a negative index for padding",
    ),
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


VARLEN_STATES = [
    (dict(state_len=-1), ValueError, "state_len is -1: expected an int, 0 or more"),
    (dict(state_len=2.5), TypeError, "state_len is 2.5: expected an int"),
    (dict(state_len="3"), TypeError, "state_len is '3': expected an int"),
    (dict(state_len=2**70), ValueError, f"state_len is {2**70}: expected an int, 0 to 576460752303423487"),
    (dict(state_len=2**62), ValueError, f"state_len is {2**62}: expected an int, 0 to 576460752303423487"),
    (dict(cu_seqlens=torch.tensor([], dtype=I32)), ValueError, "cu_seqlens is empty"),
    (dict(cu_seqlens=torch.tensor([[0, 8]])), ValueError, "cu_seqlens has shape (1, 2)"),
    (dict(x=X), ValueError, "x has shape (2, 4, 8)"),
]


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("case", VARLEN_STATES, ids=describe)
def test_varlen_states(case, library):
    change, exception, words = case
    arguments = dict(x=X[0].T, cu_seqlens=torch.tensor([0, 8]), state_len=2) | change
    if library == "numpy":
        arguments = {n: a.numpy() if isinstance(a, torch.Tensor) else a for n, a in arguments.items()}
    with pytest.raises(exception) as raised:
        causeway.causal_conv1d_varlen_states(**arguments)
    assert words in str(raised.value)


def test_a_state_len_that_no_tensor_has_for_the_dispatcher():
    x, cu_seqlens = (tensor.to("meta") for tensor in (X[0].T, torch.tensor([0, 8])))
    for state_len in (2**70, 2**62):
        with pytest.raises(ValueError, match=f"^state_len is {state_len}: expected an int, 0 to "):
            causeway.causal_conv1d_varlen_states(x, cu_seqlens, state_len)


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


@pytest.mark.parametrize("needs_gradient", [False, True], ids=["", "with-gradient"])
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_named(layout, needs_gradient):
    x = torch.nested.nested_tensor([X[0].T, X[1].T[:5]], layout=layout, requires_grad=needs_gradient)
    packed = r"x is a nested tensor: expected sequences packed .*x\.values\(\)\.T\[None\]"
    with pytest.raises(TypeError, match=packed):
        causeway.causal_conv1d_fn(x, WEIGHT)
    with pytest.raises(TypeError, match=packed):
        causeway.causal_conv1d_update(x, torch.zeros(2, 4, 2), WEIGHT)
    with pytest.raises(TypeError, match=packed):
        causeway.causal_conv1d_varlen_states(x, torch.tensor([0, 8, 13]), 2)
    with pytest.raises(TypeError, match="b is a nested tensor: expected one with a shape and strides"):
        causeway.gemm(X[0].half(), x)


SIZES = dict(sizes=(4, 4, 4), head_dim=2)


def of_thirds(t):
    """Calls that cut a tensor in three, each with one argument made by `t`: (its name, the call)."""
    weight, bias, state = torch.randn(12, 3), torch.randn(12), torch.zeros(2, 12, 2)
    qkv, update = (functools.partial(f, **SIZES) for f in (causeway.causal_conv1d_qkv, causeway.causal_conv1d_qkv_update))
    third = torch.randn(4, 3)
    return [
        ("packed", lambda: causeway.causal_conv1d_gated_packed(t(PACKED), WEIGHT)),
        ("x", lambda: qkv(t(PACKED), weight)),
        ("weight", lambda: qkv(PACKED, t(weight))),
        ("bias", lambda: qkv(PACKED, weight, t(bias))),
        ("initial_states", lambda: qkv(PACKED, weight, initial_states=t(state))),
        ("x", lambda: causeway.causal_conv1d_qkv((X, t(X), X), (third,) * 3, head_dim=2)),
        ("weight", lambda: causeway.causal_conv1d_qkv((X,) * 3, (third, t(third), third), head_dim=2)),
        ("x", lambda: update(t(PACKED), state, weight)),
        ("conv_state", lambda: update(PACKED, t(state), weight)),
        ("weight", lambda: update(PACKED, state, t(weight))),
        ("bias", lambda: update(PACKED, state, weight, t(bias))),
    ]


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_in_three_parts_is_named(layout):
    """Whichever axis has no size, also where a view of the tensor is what PyTorch finds words for first."""
    nested = torch.nested.nested_tensor([torch.randn(5, 12), torch.randn(3, 12)], layout=layout)
    for value in (nested, nested.transpose(1, 2)):
        for name, call in of_thirds(lambda _: value):
            with pytest.raises(TypeError, match=f"^{name} is a nested tensor: expected"):
                call()


@pytest.mark.parametrize("value", [3, "x"])
def test_what_is_no_tensor_in_three_parts_is_named(value):
    for name, call in of_thirds(lambda _: value):
        with pytest.raises(TypeError, match=f"^{name} is an? {type(value).__name__}: expected a torch.Tensor"):
            call()


@pytest.mark.parametrize("value", [3, "x", X.numpy()], ids=["int", "str", "array"])
def test_what_autocast_cannot_cast_is_named(value):
    calls = [
        ("initial_states", lambda: causeway.causal_conv1d_fn(X, WEIGHT, initial_states=value)),
        ("residual", lambda: causeway.causal_conv1d_fn(X, WEIGHT, residual=value)),
        ("C", lambda: causeway.causal_conv1d_gated(X, X, value, WEIGHT)),
        ("initial_states", lambda: causeway.causal_conv1d_gated_packed(PACKED, WEIGHT, initial_states=value)),
        ("b", lambda: causeway.gemm(X[0], value)),
    ]
    for name, call in calls:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with pytest.raises(TypeError, match=f"^{name} is an? {type(value).__name__}: expected a torch.Tensor"):
                call()


@pytest.mark.parametrize("value", [3, "x", WEIGHT], ids=["int", "str", "tensor"])
def test_what_is_no_array_in_three_parts_is_named(value):
    x, weight, state = (t.numpy() for t in (PACKED, torch.randn(12, 3), torch.zeros(2, 12, 2)))
    for name, call in [
        ("weight", lambda: causeway.causal_conv1d_qkv(x, value, **SIZES)),
        ("bias", lambda: causeway.causal_conv1d_qkv(x, weight, value, **SIZES)),
        ("initial_states", lambda: causeway.causal_conv1d_qkv(x, weight, initial_states=value, **SIZES)),
        ("conv_state", lambda: causeway.causal_conv1d_qkv_update(x, value, weight, **SIZES)),
    ]:
        fix = rf"; pass {name}\.numpy\(\)" if value is WEIGHT else ""
        with pytest.raises(TypeError, match=rf"^{name} is an? {type(value).__name__}: expected a numpy\.ndarray, as x is{fix}$"):
            call()


LAYOUTS = [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, torch.Tensor.to_mkldnn]


def of_layout(named):
    """Calls with one argument that is not strided: (its name, a function of that)."""
    weight, state = torch.randn(12, 3, requires_grad=True), torch.zeros(2, 12, 2)
    qkv, update = (functools.partial(f, **SIZES) for f in (causeway.causal_conv1d_qkv, causeway.causal_conv1d_qkv_update))
    third = torch.randn(4, 3)
    return {
        "packed": ("packed", lambda t: causeway.causal_conv1d_gated_packed(t(PACKED), WEIGHT)),
        "packed-weight": ("weight", lambda t: causeway.causal_conv1d_gated_packed(PACKED, t(WEIGHT))),
        "gated": ("x", lambda t: causeway.causal_conv1d_gated(X, t(X), X, WEIGHT)),
        "gate": ("B", lambda t: causeway.causal_conv1d_gated(t(X), X, X, WEIGHT)),
        "qkv": ("x", lambda t: qkv(t(PACKED), weight)),
        "qkv-weight": ("weight", lambda t: qkv(PACKED, t(weight))),
        "qkv-states": ("initial_states", lambda t: qkv(PACKED, weight, initial_states=t(state))),
        "three": ("x", lambda t: causeway.causal_conv1d_qkv((X, t(X), X), (third,) * 3, head_dim=2)),
        "update": ("x", lambda t: update(t(PACKED), state, weight)),
        "update-state": ("conv_state", lambda t: update(PACKED, t(state), weight)),
        "update-weight": ("weight", lambda t: update(PACKED, state, t(weight))),
        "GatedShortConv": ("hidden", lambda t: causeway.nn.GatedShortConv(8, 3)(t(X))),
        "GatedShortConv.step": ("hidden", lambda t: causeway.nn.GatedShortConv(8, 3).step(t(X), torch.zeros(2, 8, 2))),
        "QKVShortConv": ("packed", lambda t: causeway.nn.QKVShortConv((2, 2, 4), 2, 3)(t(X))),
        "QKVShortConv.step": ("packed", lambda t: causeway.nn.QKVShortConv((2, 2, 4), 2, 3).step(t(X), torch.zeros(2, 8, 2))),
    }[named]


@pytest.mark.parametrize("convert", LAYOUTS, ids=lambda convert: convert.__name__)
@pytest.mark.parametrize("call", ["packed", "packed-weight", "gated", "gate", "qkv", "qkv-weight", "qkv-states", "three", "update",
                                  "update-state", "update-weight", "GatedShortConv", "GatedShortConv.step", "QKVShortConv",
                                  "QKVShortConv.step"])  # fmt: skip
def test_another_layout_is_named(call, convert):
    name, function = of_layout(call)
    words = rf"{name} has layout torch\.\w+: expected torch\.strided; pass {name}\.to_dense\(\)"
    with pytest.raises(RuntimeError, match=words):
        function(lambda tensor: convert(tensor.detach()))


BLOCKS = {"hidden": causeway.nn.GatedShortConv(8, 3), "packed": causeway.nn.QKVShortConv((2, 2, 4), 2, 3)}


@pytest.mark.parametrize("name, block", BLOCKS.items())
@pytest.mark.parametrize(
    "value, error, words",
    [
        (X[0], ValueError, r"NAME has shape \(4, 8\): expected \(batch, seqlen, 8\); pass NAME\[None\] for one sequence"),
        (X[0, 0], ValueError, r"NAME has shape \(8,\): expected \(batch, seqlen, 8\)$"),
        (X[None], ValueError, r"NAME has shape \(1, 2, 4, 8\): expected \(batch, seqlen, 8\)$"),
        (X[..., :5], ValueError, r"NAME has shape \(2, 4, 5\): expected \(batch, seqlen, 8\)$"),
        (X.tolist(), TypeError, "NAME is a list: expected a torch.Tensor$"),
        (None, TypeError, "NAME is a NoneType: expected a torch.Tensor$"),
        (X.numpy(), TypeError, r"NAME is an ndarray: expected a torch.Tensor; torch.from_dlpack\(NAME\) makes one"),
    ],
)
def test_what_a_block_is_called_with(name, block, value, error, words):
    with pytest.raises(error, match=words.replace("NAME", name)):
        block(value)
    if isinstance(value, torch.Tensor) and value.shape != (4, 8):
        shape = re.escape(str(tuple(value.shape)))
        with pytest.raises(error, match=rf"{name} has shape {shape}: expected \(batch, 8\) or \(batch, n, 8\)"):
            block.step(value, block.new_state(2))


@pytest.mark.parametrize("name, block", BLOCKS.items())
def test_a_jagged_tensor_for_a_block(name, block):
    parts = [torch.randn(5, 8), torch.randn(3, 8)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    with pytest.raises(TypeError, match=rf"{name} is a nested tensor: .* {name}\.values\(\)\[None\] with cu_seqlens"):
        block(nested)
    # As the message has it.
    found, expected = block(nested.values()[None], cu_seqlens=nested.offsets()), [block(part[None]) for part in parts]
    if name == "packed":
        found, expected = found[0], [result[0] for result in expected]
    torch.testing.assert_close(found, torch.cat(expected, 1))


def test_what_to_do_with_a_jagged_tensor():
    parts = [X[0].T, X[1].T[:5]]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged)
    y = causeway.causal_conv1d_fn(x.values().T[None], WEIGHT, cu_seqlens=x.offsets())
    expected = [causeway.causal_conv1d_fn(part.T[None], WEIGHT) for part in parts]
    assert torch.equal(y, torch.cat(expected, dim=-1))


@pytest.mark.skipif(not hasattr(torch.library, "register_vmap"), reason="PyTorch 2.4 has its own words")
def test_update_under_vmap_is_refused_in_words():
    states = torch.zeros(3, 2, 4, 2)
    update = lambda x, state: causeway.causal_conv1d_update(x, state, WEIGHT)  # noqa: E731
    with pytest.raises(NotImplementedError, match="causal_conv1d_update cannot be called inside of .*vmap"):
        torch.func.vmap(update)(torch.randn(3, 2, 4), states)
    assert not states.any()


@pytest.mark.parametrize("name", ["weight", "bias", "initial_states", "residual"])
def test_a_meta_tensor_beside_one_with_memory(name):
    arguments = dict(x=X, weight=WEIGHT, bias=BIAS, initial_states=torch.zeros(2, 4, 2), residual=X)
    meta = {key: value.to("meta") for key, value in arguments.items()}
    assert causeway.causal_conv1d_fn(**meta).shape == X.shape
    with pytest.raises(RuntimeError, match=f"{name} is on cpu: expected meta, where x is"):
        causeway.causal_conv1d_fn(**(meta | {name: arguments[name]}))


# Of shapes and dtypes alone, which tensors without memory have too.
WITHOUT_MEMORY = [
    case
    for case in FORWARD
    if all(isinstance(value, torch.Tensor) and value.layout == torch.strided for value in case[0].values())
    and not re.search(r"cu_seqlens ends|cu_seqlens\[|final_states_out", case[2])
    and case[1] is not RuntimeError
]


@pytest.mark.parametrize("case", WITHOUT_MEMORY, ids=describe)
def test_forward_of_meta_tensors(case):
    change, exception, words = case
    arguments = dict(x=X, weight=WEIGHT, bias=BIAS) | change
    with pytest.raises(exception) as raised:
        causeway.causal_conv1d_fn(**{name: value.to("meta") for name, value in arguments.items()})
    assert words in str(raised.value)


def test_there_are_errors_of_meta_tensors():
    assert len(WITHOUT_MEMORY) > 15


def test_float64_meta_tensors_with_indices():
    x, weight = torch.zeros(2, 5, 9, dtype=torch.float64, device="meta"), torch.zeros(7, 4, dtype=torch.float64, device="meta")
    with pytest.raises(ValueError, match=r"x has shape \(2, 5, 9\) and weight has shape \(7, 4\)"):
        causeway.causal_conv1d_fn(x, weight, seq_idx=torch.zeros(2, 9, dtype=I32, device="meta"))


def test_outputs_of_meta_tensors():
    x, weight = X.to("meta"), WEIGHT.to("meta")
    y = torch.empty(2, 4, 7, device="meta")
    with pytest.raises(ValueError, match="y has seqlen 7: expected 8"):
        causeway.kernels.causal_conv1d_forward(x, weight, None, None, None, None, None, True, y, None)


def test_update_of_meta_tensors_on_two_devices():
    x, state, weight = (t.to("meta") for t in (X, torch.zeros(2, 4, 2), WEIGHT))
    assert causeway.causal_conv1d_update(x, state, weight).shape == X.shape
    with pytest.raises(RuntimeError, match="conv_state is on cpu: expected meta, where x is"):
        causeway.causal_conv1d_update(x, torch.zeros(2, 4, 2), weight)


def of_library(module, name="Array", **attributes):
    """An object of a class that another library could have."""
    return type(name, (), dict(__module__=module, **attributes))()


def test_arrays_of_other_libraries():
    with pytest.raises(TypeError, match=r"x is a JAX array: pass torch\.from_dlpack\(x\) or numpy\.asarray"):
        causeway.causal_conv1d_fn(of_library("jaxlib._jax", __dlpack__=None), WEIGHT)
    with pytest.raises(TypeError, match=r"a is an Array: expected .*; torch\.from_dlpack\(a\) makes one"):
        causeway.gemm(of_library("cupy", __dlpack__=None), WEIGHT)
    array = of_library("jaxlib._jax", __dlpack__=None, __array__=None)
    with pytest.raises(TypeError, match=r"weight is an Array: expected .*; pass torch\.from_dlpack\(weight\)"):
        causeway.causal_conv1d_fn(X, array)
    with pytest.raises(TypeError, match=r"weight is an Array: expected .*; pass numpy\.asarray\(weight\)"):
        causeway.causal_conv1d_fn(X.numpy(), array)
    with pytest.raises(TypeError, match="grad_c is a list: expected a torch.Tensor or a numpy.ndarray$"):
        causeway.gemm_grad_a([1.0], WEIGHT)


def test_symbolic_tracing_is_refused_in_words():
    with pytest.raises(TypeError, match=r"x is a torch\.fx\.Proxy, .*torch\.fx\.wrap"):
        torch.fx.symbolic_trace(lambda x: causeway.causal_conv1d_fn(x, WEIGHT))


def test_a_module_is_a_leaf_of_symbolic_tracing():
    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, module, name):
            return isinstance(module, causeway.nn.CausalConv1d) or super().is_leaf_module(module, name)

    model = torch.nn.Sequential(causeway.nn.CausalConv1d(4, 3), torch.nn.ReLU())
    traced = torch.fx.GraphModule(model, Tracer().trace(model))
    assert torch.equal(traced(X), model(X))


REFERENCE = [
    (dict(x=X[0]), "x has shape (4, 8): expected (batch, dim, seqlen)"),
    (dict(weight=WEIGHT[:3]), "x has shape (2, 4, 8) and weight has shape (3, 3): expected the same dim in both"),
    (dict(weight=WEIGHT[:, None]), "weight has shape (4, 1, 3): expected (dim, width); "),
    (dict(weight=WEIGHT[:, :0]), "weight has width 0"),
    (dict(bias=BIAS[:3]), "bias has dim 3: expected 4, the dim of x"),
    (dict(bias=BIAS[None]), "bias has shape (1, 4): expected (dim,)"),
    (dict(initial_states=torch.zeros(2, 4, 3)), "initial_states has length 3: expected 2, the width of weight less one"),
    (dict(final_states_out=torch.zeros(3, 4, 2)), "final_states_out has batch 3: expected 2, the batch of x"),
    (dict(seq_idx=torch.zeros(2, 7, dtype=I32)), "seq_idx has seqlen 7: expected 8, the seqlen of x"),
]


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("change, words", REFERENCE)
def test_the_reference_has_the_same_words(change, words, library):
    arguments = dict(x=X, weight=WEIGHT, bias=BIAS) | change
    if library == "numpy":
        arguments = {name: value.numpy() for name, value in arguments.items()}
    for function in (causeway.causal_conv1d_fn, causeway.causal_conv1d_ref):
        with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
            function(**arguments)


UPDATE_REFERENCE = [
    (dict(x=X[0, :, 0]), "x has shape (4,): expected (batch, dim) or (batch, dim, seqlen)"),
    (dict(weight=WEIGHT[:3]), "x has shape (2, 4) and weight has shape (3, 3): expected the same dim in both"),
    (dict(conv_state=torch.zeros(2, 3, 2)), "conv_state has dim 3: expected 4, the dim of x"),
    (dict(conv_state=torch.zeros(4, 2)), "conv_state has shape (4, 2): expected (batch, dim, state_len)"),
    (dict(conv_state=torch.zeros(2, 4, 1)), "conv_state holds 1 positions: a convolution of width 3 needs at least 2"),
    (dict(cache_seqlens=torch.zeros(3, dtype=I32)), "cache_seqlens has batch 3: expected 2, the batch of x"),
]


@pytest.mark.parametrize("change, words", UPDATE_REFERENCE)
def test_the_reference_of_an_update_has_the_same_words(change, words):
    arguments = dict(x=X[:, :, 0], conv_state=torch.zeros(2, 4, 2), weight=WEIGHT) | change
    for function in (causeway.causal_conv1d_update, causeway.causal_conv1d_update_ref):
        with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
            function(**arguments)


def test_the_reference_of_what_is_no_tensor():
    for function in (causeway.causal_conv1d_fn, causeway.causal_conv1d_ref):
        with pytest.raises(TypeError, match="^x is an int: expected a torch.Tensor or a numpy.ndarray$"):
            function(3, WEIGHT)
    with pytest.raises(TypeError, match="^weight is a list: expected a torch.Tensor"):
        causeway.causal_conv1d_ref(X, [1.0])


MODULE = [
    (dict(kernel_size=0), ValueError, "kernel_size is 0: expected an int, 1 to 256"),
    (dict(kernel_size=257), ValueError, "kernel_size is 257"),
    (dict(kernel_size=(4, 4)), TypeError, "kernel_size is (4, 4): expected an int, 1 to 256, or a tuple of one"),
    (dict(kernel_size=[]), TypeError, "kernel_size is []: expected an int, 1 to 256, or a tuple of one"),
    (dict(kernel_size="4"), TypeError, "kernel_size is '4': expected an int, 1 to 256"),
    (dict(kernel_size=4.0), TypeError, "kernel_size is 4.0"),
    (dict(channels=0), ValueError, "channels is 0: expected an int, 1 or more"),
    (dict(channels=8.5), TypeError, "channels is 8.5"),
    (dict(activation="gelu"), NotImplementedError, "activation is 'gelu'"),
]


@pytest.mark.parametrize("case", MODULE, ids=describe)
def test_the_module(case):
    change, exception, words = case
    with pytest.raises(exception) as raised:
        causeway.nn.CausalConv1d(**(dict(channels=4, kernel_size=3) | change))
    assert words in str(raised.value)


def test_arguments_of_the_module():
    with pytest.raises(TypeError, match="'silu' as its third argument: .* by name; pass activation='silu'"):
        causeway.nn.CausalConv1d(8, 4, "silu")
    with pytest.raises(TypeError, match="pass bias=False"):
        causeway.nn.CausalConv1d(8, 4, False)
    for size in (4, (4,)):
        words = re.escape(f"it is not Conv1d(in_channels, out_channels, kernel_size), and takes channels once; write CausalConv1d(8, {size})")
        with pytest.raises(TypeError, match=words):
            causeway.nn.CausalConv1d(8, 8, size)
    with pytest.raises(ValueError, match="batch is -1: expected an int, 0 or more"):
        causeway.nn.CausalConv1d(8, 4).new_state(-1)
    plain = torch.nn.Conv1d(8, 8, 4, groups=8)
    conv = causeway.nn.CausalConv1d(plain.in_channels, plain.kernel_size)
    assert conv.kernel_size == (4,) and conv.weight.shape == plain.weight.shape


@pytest.mark.gpu
def test_tensors_on_different_devices():
    with pytest.raises(RuntimeError, match="weight is on the host: expected cuda:0"):
        causeway.causal_conv1d_fn(X.cuda(), WEIGHT)
    with pytest.raises(RuntimeError, match="bias is on cuda:0"):
        causeway.causal_conv1d_fn(X, WEIGHT, BIAS.cuda())
    # Each of q, k and v has its own device, and they share one launch.
    q, k, v = (torch.randn(1, 64, 8) for _ in range(3))
    weights = [torch.randn(64, 4) for _ in range(3)]
    for here in (0, 1, 2):
        there = [tensor if at == here else tensor.cuda() for at, tensor in enumerate((q, k, v))]
        with pytest.raises(RuntimeError, match="x is on"):
            causeway.causal_conv1d_qkv(
                tuple(there), tuple(weight.to(x.device) for weight, x in zip(weights, there)), head_dim=32
            )


def test_calls_that_are_launched_together_share_no_memory():
    memory = torch.zeros(2, 256, 4)
    x, state = memory[:, 64:256, 0], memory[:, :192, :3]
    before = memory.clone()
    with pytest.raises(RuntimeError, match="conv_state of one call shares memory with x of another"):
        causeway.causal_conv1d_qkv_update(x, state, torch.randn(192, 4), sizes=(64, 64, 64), head_dim=32)
    assert torch.equal(memory, before)


def test_tensors_that_are_not_aligned():
    x = torch.frombuffer(bytearray(4 * 64 * 8 + 1), dtype=torch.float32, offset=1).view(1, 64, 8)
    with pytest.raises(ValueError, match=r"x has elements that are not aligned to their size: pass x.clone\(\)"):
        causeway.causal_conv1d_fn(x, torch.randn(64, 4))
    assert causeway.causal_conv1d_fn(x.clone(), torch.randn(64, 4)).shape == x.shape


@pytest.mark.gpu
def test_one_boundary_on_a_gpu():
    boundaries = torch.zeros(1, dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match="cu_seqlens"):
        causeway.causal_conv1d_fn(X[:1].cuda(), WEIGHT.cuda(), cu_seqlens=boundaries)


PACKED_CALLS = [
    (dict(packed=PACKED.int()), TypeError, "packed has dtype int32: expected float32"),
    (dict(packed=PACKED.double()), TypeError, "weight has dtype float32: expected float64, since packed is float64"),
    (dict(bias=BIAS[:3]), ValueError, "bias has dim 3: expected 4, the dim of packed"),
    (dict(initial_states=torch.zeros(2, 4, 2).half()), TypeError, "initial_states has dtype float16: expected float32, the dtype of packed"),
    (dict(seq_idx=torch.zeros(2, 7, dtype=I32)), ValueError, "seq_idx has seqlen 7: expected 8, the seqlen of packed"),
    (dict(cu_seqlens=torch.tensor([0, 8])), ValueError, "packed has batch 2: expected 1, since cu_seqlens packs"),
    (dict(packed=PACKED[:1], cu_seqlens=torch.tensor([0, 9])), ValueError, "cu_seqlens ends at 9: expected 8, the length of packed"),
    (dict(packed=PACKED.bool()), TypeError, "packed has dtype bool: expected float32"),
]


@pytest.mark.parametrize("library", ["torch", "with-gradient", "numpy"])
@pytest.mark.parametrize("return_final_states", [False, True], ids=["", "with-states"])
@pytest.mark.parametrize("case", PACKED_CALLS, ids=describe)
def test_errors_of_a_packed_call_name_the_packed_tensor(case, return_final_states, library):
    change, exception, words = case
    arguments = dict(packed=PACKED, weight=WEIGHT) | change
    if library == "numpy":
        arguments = {name: tensor.numpy() for name, tensor in arguments.items()}
    elif library == "with-gradient":
        arguments["weight"] = WEIGHT.clone().requires_grad_()
    with pytest.raises(exception, match=f"^{re.escape(words)}"):
        causeway.causal_conv1d_gated_packed(**arguments, return_final_states=return_final_states)


@pytest.mark.parametrize("needs_gradient", [False, True], ids=["", "with-gradient"])
def test_errors_of_a_packed_call_through_the_dispatcher(needs_gradient):
    packed, weight = PACKED.to("meta"), WEIGHT.to("meta").requires_grad_(needs_gradient)
    with pytest.raises(RuntimeError, match="^weight is on cpu: expected meta, where packed is$"):
        causeway.causal_conv1d_gated_packed(packed, WEIGHT.clone().requires_grad_(needs_gradient))
    with pytest.raises(ValueError, match="^bias has dim 3: expected 4, the dim of packed$"):
        causeway.causal_conv1d_gated_packed(packed, weight, BIAS[:3].to("meta"))
    if not needs_gradient:
        with pytest.raises(TypeError, match="^packed has dtype int32: "):
            causeway.causal_conv1d_gated_packed(packed.int(), weight)
    # No other call has its names.
    with pytest.raises(ValueError, match="^bias has dim 3: expected 4, the dim of x$"):
        causeway.causal_conv1d_fn(X.to("meta"), weight, BIAS[:3].to("meta"))


@pytest.mark.parametrize("name", ["bias", "initial_states", "cu_seqlens"])
def test_what_is_no_tensor_beside_a_packed_one(name):
    with pytest.raises(TypeError, match=f"^{name} is a list: expected a torch.Tensor, as packed is$"):
        causeway.causal_conv1d_gated_packed(PACKED, WEIGHT, **{name: [1]})


GEMM = [
    (dict(a=torch.randn(2, 3)), TypeError, "a has dtype float32"),
    (dict(a=torch.ones(2, 3).bool()), TypeError, "a has dtype bool: expected float16 or bfloat16"),
    (dict(a=torch.randn(3).half()), ValueError, "a has shape (3,)"),
    (dict(b=torch.randn(4, 2).half()), ValueError, "b has K 4: expected 3, the K of a"),
    (dict(b=torch.randn(3, 2).bfloat16()), TypeError, "b has dtype bfloat16: expected float16, the dtype of a"),
    (dict(algorithm="best"), ValueError, "algorithm is"),
    (dict(algorithm=None), TypeError, 'algorithm is None: expected fast or exact'),
    (dict(b=np.zeros((3, 2), np.float16)), TypeError, "b is an ndarray: expected a torch.Tensor, as a is; pass torch.from_numpy(b)"),
    (dict(b=None), TypeError, "b is a NoneType"),
]


@pytest.mark.parametrize("case", GEMM, ids=describe)
def test_gemm(case):
    change, exception, words = case
    with pytest.raises(exception) as raised:
        causeway.gemm(**(dict(a=torch.randn(2, 3).half(), b=torch.randn(3, 2).half()) | change))
    assert words in str(raised.value)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is set by what /proc says")
def test_memory_that_the_system_does_not_give():
    """A backward call with a norm keeps a gradient in f32 for every element of x."""
    program = (
        "import resource, torch, causeway.kernels as kernels\n"
        "rows = torch.ones(1, 64, 1, dtype=torch.bfloat16).expand(1, 64, 1 << 22)\n"
        "weight, dx = torch.ones(64, 4), torch.full((1, 64, 1 << 22), 7, dtype=torch.bfloat16)\n"
        "dweight = torch.full((64, 4), 7.0)\n"
        "call = rows, weight, None, rows, None, None, None, None, True, dx, dweight, None, None\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (512 << 20),) * 2)\n"
        "try:\n"
        "    kernels.causal_conv1d_backward(*call, head_dim=64)\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
        "assert (dx == 7).all() and (dweight == 7).all()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = "no memory for a tensor of shape (1, 64, 4194304) and dtype float32, 1073741824 bytes"
    assert done.stdout.strip() == expected
