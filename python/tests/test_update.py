"""Decoding: against forward, and against the reference, with every kind of state."""

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402


def draw(*shape, device, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("state_len", [3, 4, 9])
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("ring", [False, True], ids=["shift", "ring"])
def test_against_the_reference(device, activation, state_len, steps, ring):
    x, weight, bias = (draw(*s, device=device) for s in [(3, 6, steps), (6, 4), (6,)])
    states = [draw(3, 6, state_len, device=device, seed=1) for _ in range(2)]
    seen = torch.tensor([0, 3, 50], dtype=torch.int32, device=device) if ring else None
    expected = causeway.causal_conv1d_update_ref(x, states[0], weight, bias, activation, seen)
    found = causeway.causal_conv1d_update(x, states[1], weight, bias, activation, seen)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(*states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_decoding_goes_on_where_forward_ended(device, dtype):
    x, weight = draw(2, 6, 12, device=device, dtype=dtype), draw(6, 4, device=device)
    expected = causeway.causal_conv1d_fn(x, weight, activation="silu")
    _, state = causeway.causal_conv1d_fn(x[..., :7], weight, return_final_states=True)
    for t in range(7, 12):
        y = causeway.causal_conv1d_update(x[..., t], state, weight, activation="silu")
        torch.testing.assert_close(y, expected[..., t])


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_decoding_under_autocast(device, x_dtype, state_dtype, activation, compiled):
    """Every mix of dtypes goes on where prefill has ended."""
    x, weight, bias = draw(2, 6, 12, device=device, dtype=x_dtype), draw(6, 4, device=device), draw(6, device=device)

    def prefill(x, state):
        return causeway.causal_conv1d_fn(
            x, weight, bias, return_final_states=True, final_states_out=state, activation=activation
        )

    def decode(x, state):
        return causeway.causal_conv1d_update(x, state, weight, bias, activation)

    if compiled:
        torch._dynamo.reset()
        prefill, decode = (torch.compile(f, fullgraph=True, backend="aot_eager") for f in (prefill, decode))
    with torch.autocast(device, dtype=torch.bfloat16):
        expected, last = prefill(x, None)
        state = torch.full((2, 6, 3), 7.0, device=device, dtype=state_dtype)
        y, _ = prefill(x[..., :7], state)
        parts = [y, *(decode(x[..., t], state)[..., None] for t in range(7, 9)), decode(x[..., 9:], state)]
    assert all(part.dtype == torch.bfloat16 for part in parts) and state.dtype == state_dtype
    # The same bits, up to the rounding of SiLU where a state of 32 bits has it in 32 bits.
    rounding = 2**-7 if activation and state_dtype == torch.float32 else 0
    torch.testing.assert_close(torch.cat(parts, -1), expected, atol=0, rtol=rounding)
    assert torch.equal(state.bfloat16(), last)


def test_float32_states_of_prefill_under_autocast_keep_their_graph(device):
    x = draw(2, 6, 5, device=device).requires_grad_()
    weight, out = draw(6, 4, device=device), torch.zeros(2, 6, 3, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        _, states = causeway.causal_conv1d_fn(x, weight, return_final_states=True, final_states_out=out)
        causeway.causal_conv1d_fn(x, weight, final_states_out=out)
        with torch.no_grad():
            _, same = causeway.causal_conv1d_fn(x, weight, return_final_states=True, final_states_out=out)
    assert same is out and not out.requires_grad and states.dtype == torch.float32
    assert torch.equal(out, states) and torch.equal(out, x.detach()[..., -3:].bfloat16().float())
    (dx,) = torch.autograd.grad(states.sum(), x)
    assert dx[..., -3:].eq(1).all() and not dx[..., :-3].any()


def test_the_module_decodes_under_autocast(device):
    conv = causeway.nn.CausalConv1d(6, 4, activation="silu", device=device)
    x = draw(2, 6, 9, device=device)
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        expected = conv(x)
        state = conv.new_state(2)
        _, other = conv(x[..., :5], return_state=True)
        found = torch.stack([conv.step(x[..., t], state) for t in range(9)], -1)
        rest = torch.stack([conv.step(x[..., t], other) for t in range(5, 9)], -1)
    torch.testing.assert_close(found, expected, atol=0, rtol=2**-7)
    torch.testing.assert_close(rest, expected[..., 5:], atol=0, rtol=0)


@pytest.mark.parametrize("x_dtype, state_dtype", [("float32", "float16"), ("float32", "float64")])
def test_other_states_under_autocast_are_refused(device, x_dtype, state_dtype):
    x = draw(2, 6, device=device, dtype=getattr(torch, x_dtype))
    state = torch.zeros(2, 6, 3, device=device, dtype=getattr(torch, state_dtype))
    with torch.autocast(device, dtype=torch.bfloat16), pytest.raises(TypeError, match="conv_state has dtype"):
        causeway.causal_conv1d_update(x, state, draw(6, 4, device=device))


def test_rows_by_index_with_padding(device):
    x, weight = draw(4, 6, device=device), draw(6, 4, device=device)
    pool = draw(8, 3, 6, device=device).transpose(1, 2)
    before = pool.clone()
    indices = torch.tensor([5, -1, 0, 7], dtype=torch.int32, device=device)
    y = causeway.causal_conv1d_update(x, pool, weight, conv_state_indices=indices)
    assert not y[1].any()
    for entry, row in [(0, 5), (2, 0), (3, 7)]:
        state = before[row : row + 1].clone()
        expected = causeway.causal_conv1d_update(x[entry : entry + 1], state, weight)
        torch.testing.assert_close(y[entry : entry + 1], expected)
        assert torch.equal(pool[row], state[0])
    untouched = [1, 2, 3, 4, 6]
    assert torch.equal(pool[untouched], before[untouched])


def test_varlen_states(device):
    x, ends = draw(12, 6, device=device), torch.tensor([0, 2, 2, 12], device=device)
    states = causeway.causal_conv1d_varlen_states(x, ends, 4)
    expected = torch.zeros(3, 6, 4, device=device)
    expected[0, :, 2:] = x[:2].T
    expected[2] = x[8:].T
    assert torch.equal(states, expected)


def test_the_module(device):
    torch.manual_seed(0)
    from causeway.nn import CausalConv1d

    conv = CausalConv1d(6, 4, activation="silu", device=device)
    plain = torch.nn.Conv1d(6, 6, 4, groups=6, padding=3).to(device)
    plain.load_state_dict(conv.state_dict())
    x = torch.randn(2, 6, 9, device=device)
    expected = torch.nn.functional.silu(plain(x)[..., :9])
    torch.testing.assert_close(conv(x), expected)
    with torch.no_grad():
        y, state = conv(x[..., :5], return_state=True)
        parts = [y, *(conv.step(x[..., t], state)[..., None] for t in range(5, 9))]
        torch.testing.assert_close(torch.cat(parts, -1), expected)
        again = conv.step(x[..., 0], conv.reset_state(state))
        torch.testing.assert_close(again, expected[..., 0])
        assert torch.equal(conv.new_state(2), torch.zeros(2, 6, 3, device=device))
    conv.reset_state(state, [1])
    assert not state[1].any() and state[0].any()
    assert "activation='silu'" in repr(conv)
    conv(x).sum().backward()
    assert conv.weight.grad.shape == (6, 1, 4)
    for wrong, exception in [(dict(kernel_size=0), ValueError), (dict(activation="x"), NotImplementedError)]:
        with pytest.raises(exception):
            CausalConv1d(**(dict(channels=6, kernel_size=4) | wrong))


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("seen", [None, torch.zeros(2, dtype=torch.int32)], ids=["shifted", "ring"])
def test_a_state_that_is_too_short(library, seen):
    """In the same words from the reference, which would leave out positions."""
    given = torch.zeros(2, 4), torch.zeros(2, 4, 1), torch.zeros(4, 3), None, None, seen
    if library == "numpy":
        given = [tensor if tensor is None else tensor.numpy() for tensor in given]
    words = set()
    for update in (causeway.causal_conv1d_update, causeway.causal_conv1d_update_ref):
        with pytest.raises(ValueError, match="conv_state holds 1 positions: a convolution of width 3 needs at least 2") as raised:
            update(*given)
        words.add(str(raised.value))
    assert len(words) == 1


def test_a_state_of_another_library_is_named():
    state = torch.zeros(2, 4, 2).numpy()
    with pytest.raises(TypeError, match="^conv_state is an ndarray: expected a torch.Tensor"):
        causeway.causal_conv1d_update(torch.zeros(2, 4), state, torch.zeros(4, 3))
