"""The modules of `causeway.nn`: steps of one position, and what is registered on a module inside of a block."""

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402
from torch.nn import utils  # noqa: E402
from torch.nn.utils import parametrize, prune  # noqa: E402

BLOCKS = {
    "gated": lambda **more: causeway.nn.GatedShortConv(8, 3, **more),
    "qkv": lambda **more: causeway.nn.QKVShortConv((4, 4, 8), 4, 3, **more),
}
CHANNELS = {"gated": 8, "qkv": 16}


def joined(result):
    """One tensor of what a block gives."""
    return result if isinstance(result, torch.Tensor) else torch.cat(result, -2)


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


# What makes a weight of other parameters: parametrizations, and hooks that run before a module does.
WEIGHTS = {
    "parametrize": lambda conv: parametrize.register_parametrization(conv, "weight", Doubled()),
    "parametrizations": lambda conv: utils.parametrizations.weight_norm(conv),
    "weight_norm": lambda conv: utils.weight_norm(conv),
    "spectral_norm": lambda conv: utils.spectral_norm(conv),
    "prune": lambda conv: prune.l1_unstructured(conv, "weight", 0.3),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_weight_that_is_made_of_others(name, kind):
    block = BLOCKS[name]()
    WEIGHTS[kind](block.conv)
    x = draw(2, 5, CHANNELS[name])
    optimizer = torch.optim.SGD(block.parameters(), 0.5)
    for _ in range(2):
        optimizer.zero_grad()
        joined(block(x)).square().sum().backward()
        optimizer.step()
    block.eval()
    found, compiled = joined(block(x)), torch.compile(block, fullgraph=True, backend="eager")
    assert torch.equal(joined(compiled(x)), found)
    state = block.new_state(2)
    with torch.no_grad():
        torch.testing.assert_close(joined(block.step(x, state)), found)
        # A call of the module itself makes its weight, too.
        block.conv(draw(1, block.conv.in_channels, 4))
        plain = BLOCKS[name]()
        plain.load_state_dict({"conv.weight": block.conv.weight} | {
            key: value for key, value in block.state_dict().items() if not key.startswith("conv.")
        })  # fmt: skip
        assert torch.equal(joined(plain(x)), found)


@pytest.mark.parametrize("name", BLOCKS)
def test_hooks(name):
    """Those of a block run, and those of the module inside do not, as documented: its forward pass is not called."""
    block, seen = BLOCKS[name](), []
    block.conv.register_forward_pre_hook(lambda *_: seen.append("before conv"))
    block.conv.register_forward_hook(lambda *_: seen.append("conv"))
    block.register_forward_hook(lambda *_: seen.append("block"))
    block(draw(2, 5, CHANNELS[name]))
    assert seen == ["block"]
    assert "hooks that are registered on" in " ".join(type(block).__doc__.split()).lower()


@pytest.mark.parametrize("name", BLOCKS)
def test_a_step_of_one_position(name):
    block = BLOCKS[name](bias=True)
    x, states = draw(2, CHANNELS[name]), [block.new_state(2), block.new_state(2)]
    with torch.no_grad():
        for t in range(4):
            one, other = joined(block.step(x + t, states[0])), joined(block.step((x + t)[:, None], states[1]))
            assert one.shape == (other.shape[0], *other.shape[2:]) and torch.equal(one, other[:, 0])
    assert torch.equal(*states)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_step_has_no_gradients(name):
    """As of the functions that change a state, also where gradients are enabled: none, rather than those of the last projection."""
    block, x = BLOCKS[name](bias=True), draw(2, CHANNELS[name]).requires_grad_()
    found = joined(block.step(x, block.new_state(2)))
    assert not found.requires_grad
    with torch.no_grad():
        assert torch.equal(found, joined(block.step(x, block.new_state(2))))
    with pytest.raises(RuntimeError, match="^state requires a gradient, and is changed in place: pass state.detach"):
        block.step(x, block.new_state(2).requires_grad_())


@pytest.mark.parametrize("name", BLOCKS)
def test_steps_in_a_pool_of_ring_buffers(name):
    block = BLOCKS[name]()
    x = draw(2, 6, CHANNELS[name])
    rows = torch.tensor([2, 0], dtype=torch.int32)
    with torch.no_grad():
        whole = joined(block(x))
        pool = block.new_state(3)
        for t in range(6):
            seen = torch.full((2,), t, dtype=torch.int32)
            y = joined(block.step(x[:, t], pool, cache_seqlens=seen, conv_state_indices=rows))
            torch.testing.assert_close(y, whole[:, t])
    assert not pool[1].any() and pool[0].any() and pool[2].any()


STATES = {
    "conv": (lambda: causeway.nn.CausalConv1d(8, 3), lambda x: x.transpose(1, 2)),
    "gated": (BLOCKS["gated"], lambda x: x),
    "qkv": (lambda: causeway.nn.QKVShortConv((2, 2, 4), 2, 3), lambda x: x),
}


@pytest.mark.parametrize("name", STATES)
def test_errors_of_a_state_name_it(name):
    """By the argument of the module, and not by that of the function which it calls."""
    make, axes = STATES[name]
    module, x = make(), draw(2, 5, 8)
    for state in (torch.zeros(2, 8, 3), torch.zeros(2, 7, 2)):
        with pytest.raises(ValueError, match="^state has "):
            module(axes(x), state)
    with pytest.raises(TypeError, match="^state is an int: expected a torch.Tensor"):
        module(axes(x), 3)
    for state in (torch.zeros(2, 8, 1), torch.zeros(3, 8, 2)):
        with pytest.raises(ValueError, match="^state (has|holds) "):
            module.step(x[:, 0], state)
    with pytest.raises(TypeError, match="^state is a NoneType: expected a torch.Tensor"):
        module.step(x[:, 0], None)
    rows = torch.tensor([0, 7], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"^conv_state_indices\[1\] is 7: expected 0 to 1, the rows of state,"):
        module.step(x[:, 0], module.new_state(2), conv_state_indices=rows)


def test_rows_of_a_state():
    conv = causeway.nn.CausalConv1d(4, 3)
    words = r": expected rows of state, ints from -2 to 1, a slice, or 2 bools$"
    for rows, error in [(5, IndexError), ([0, 2], IndexError), (1.5, IndexError), ("a", TypeError), (torch.tensor([True]), IndexError)]:
        with pytest.raises(error, match="^rows is .*" + words):
            conv.reset_state(conv.new_state(2), rows)
    for rows in (1, -1, slice(1, None), [1], torch.tensor([1]), torch.tensor([False, True])):
        state = conv.reset_state(torch.ones(2, 4, 2), rows)
        assert state[0].all() and not state[1].any()


def test_kernel_size_as_torch_takes_it():
    for size in (4, (4,), [4], torch.nn.Conv1d(4, 4, [4], groups=4).kernel_size):
        conv = causeway.nn.CausalConv1d(4, size)
        assert conv.kernel_size == (4,) and conv.weight.shape == (4, 1, 4)
