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
