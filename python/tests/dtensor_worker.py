"""One rank of test_dtensor.py: sharded tensors against whole ones, values and gradients.

python dtensor_worker.py RANK RANKS RENDEZVOUS-FILE gloo|nccl
"""

import sys

import causeway
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

WHOLE, CHANNELS, BATCH, ROWS = Replicate(), Shard(1), Shard(0), Shard(0)


def make(kind):
    """A call, the same on every rank."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(3)
    draw = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    t = {"x": draw(1 if kind == "cu_seqlens" else 4, 6, 10), "weight": draw(6, 4), "bias": draw(6)}
    if kind == "states":
        t["initial_states"], t["residual"] = draw(4, 6, 3), draw(4, 6, 10)
    if kind == "seq_idx":
        t["seq_idx"] = torch.arange(10).div(4, rounding_mode="floor").int().repeat(4, 1)
    if kind == "cu_seqlens":
        t["cu_seqlens"] = torch.tensor([0, 3, 10])
    return t


def call(function, t):
    """y, final states and gradients."""
    leaves = {name: value.detach().requires_grad_() for name, value in t.items() if value.is_floating_point()}
    y, final = function(**(t | leaves), return_final_states=True, activation="silu")
    gradients = torch.autograd.grad(y.sin().sum() + final.cos().sum(), list(leaves.values()))
    return y, final, *gradients


def whole(tensor):
    """A DTensor's values on every rank."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def forward(mesh):
    """Each way to place x and weight, for each kind of call."""
    place = lambda t, placement: distribute_tensor(t, mesh, [placement])  # noqa: E731
    for kind in ["plain", "states", "seq_idx", "cu_seqlens"]:
        t = make(kind)
        expected = call(causeway.causal_conv1d_fn, t)
        for of_x, of_weight in [(CHANNELS, ROWS), (BATCH, WHOLE), (WHOLE, WHOLE), (CHANNELS, WHOLE), (Shard(2), WHOLE)]:
            placements = dict(weight=of_weight, bias=of_weight)
            parts = {
                name: value if name in ("seq_idx", "cu_seqlens") else place(value, placements.get(name, of_x))
                for name, value in t.items()
            }
            found = call(causeway.causal_conv1d_fn, parts)
            words = lambda m: f"{kind} {of_x} {of_weight}: {m}"  # noqa: E731
            if kind != "cu_seqlens" and of_x in (CHANNELS, BATCH):
                assert found[0].placements == (of_x,), words(found[0].placements)
            for one, other in zip(found, expected):
                torch.testing.assert_close(whole(one), other, msg=words)


def update(mesh):
    """A state stays where it is and is changed there; everything else comes to it."""
    place = lambda t, placement: distribute_tensor(t, mesh, [placement])  # noqa: E731
    t = make("states")
    for of_state in (WHOLE, CHANNELS, BATCH):
        for of_x in (WHOLE, CHANNELS, BATCH):
            for step in (t["x"][..., 0], t["x"][..., :2]):
                state = t["initial_states"].clone()
                part = place(state.clone(), of_state)
                expected = causeway.causal_conv1d_update(step, state, t["weight"], t["bias"], "silu")
                found = causeway.causal_conv1d_update(
                    place(step, of_x), part, place(t["weight"], WHOLE), place(t["bias"], ROWS), "silu"
                )
                assert part.placements == (of_state,) and found.placements == (of_state,)
                torch.testing.assert_close(whole(found), expected)
                torch.testing.assert_close(whole(part), state)
    options = dict(sizes=(2, 2, 2), head_dim=2)
    for of_state in (WHOLE, CHANNELS, BATCH):
        step, state = t["x"][..., 0], t["initial_states"].clone()
        part = place(state.clone(), of_state)
        expected = causeway.causal_conv1d_qkv_update(step, state, t["weight"], **options)
        found = causeway.causal_conv1d_qkv_update(place(step, of_state), part, place(t["weight"], WHOLE), **options)
        assert part.placements == (of_state,)
        torch.testing.assert_close([whole(one) for one in found], list(expected))
        torch.testing.assert_close(whole(part), state)
    x, weight = place(t["x"][..., 0], WHOLE), place(t["weight"], WHOLE)
    indices = torch.tensor([2, 0, -1, 1], dtype=torch.int32)
    state = t["initial_states"].clone()
    part = place(state.clone(), CHANNELS)
    expected = causeway.causal_conv1d_update(t["x"][..., 0], state, t["weight"], conv_state_indices=indices)
    found = causeway.causal_conv1d_update(x, part, weight, conv_state_indices=indices)
    torch.testing.assert_close((whole(found), whole(part)), (expected, state))
    with pytest.raises(ValueError, match="conv_state has placement .*conv_state_indices to be None"):
        causeway.causal_conv1d_update(x, place(state, BATCH), weight, conv_state_indices=indices)
    with pytest.raises(ValueError, match=r"conv_state has placement .*: expected Replicate\(\)"):
        causeway.causal_conv1d_update(x, place(state, Shard(2)), weight)
    with pytest.raises(TypeError, match="conv_state is a torch.Tensor, but others are DTensors"):
        causeway.causal_conv1d_update(x, state, weight)


def modules(mesh):
    """A module whose parameters are sharded by channels, and one that FSDP2 shards; both take a step of training."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    x = make("plain")["x"]
    plain = causeway.nn.CausalConv1d(6, 4, activation="silu")
    expected = plain(x)
    expected.sin().sum().backward()
    for kind in ("channels", "fsdp"):
        conv = causeway.nn.CausalConv1d(6, 4, activation="silu")
        conv.load_state_dict(plain.state_dict())
        if kind == "fsdp":
            fully_shard(conv, mesh=mesh)
            y = conv(x)
        else:
            for name, value in list(conv.named_parameters()):
                setattr(conv, name, torch.nn.Parameter(distribute_tensor(value.detach(), mesh, [ROWS])))
            y = conv(distribute_tensor(x, mesh, [CHANNELS]))
        torch.testing.assert_close(whole(y), expected)
        y.sin().sum().backward()
        for found, other in zip(conv.parameters(), plain.parameters()):
            torch.testing.assert_close(whole(found.grad), other.grad)


def compiled(mesh):
    """As forward, without a graph break."""
    t = make("plain")
    function = lambda x, weight: causeway.causal_conv1d_fn(x * 2, weight, activation="silu") + 1  # noqa: E731
    found = torch.compile(function, fullgraph=True, backend="aot_eager")(
        distribute_tensor(t["x"], mesh, [CHANNELS]), distribute_tensor(t["weight"], mesh, [ROWS])
    )
    torch.testing.assert_close(whole(found), function(t["x"], t["weight"]))
    step = lambda x, state, weight: causeway.causal_conv1d_update(x + 1, state, weight, activation="silu")  # noqa: E731
    state = torch.ones(4, 6, 3)
    part = distribute_tensor(state.clone(), mesh, [CHANNELS])
    found = torch.compile(step, fullgraph=True, backend="aot_eager")(
        distribute_tensor(t["x"][..., 0], mesh, [CHANNELS]), part, distribute_tensor(t["weight"], mesh, [ROWS])
    )
    torch.testing.assert_close(whole(found), step(t["x"][..., 0], state, t["weight"]))
    torch.testing.assert_close(whole(part), state)


def others(mesh):
    """States of packed sequences, and products."""
    place = lambda t, placement: distribute_tensor(t, mesh, [placement])  # noqa: E731
    t = make("states")
    whole_out, out = torch.zeros(4, 6, 3), place(torch.zeros(4, 6, 3), BATCH)
    causeway.causal_conv1d_fn(t["x"], t["weight"], final_states_out=whole_out)
    causeway.causal_conv1d_fn(place(t["x"], CHANNELS), place(t["weight"], ROWS), final_states_out=out)
    assert out.placements == (BATCH,)
    torch.testing.assert_close(whole(out), whole_out)
    with pytest.raises(TypeError, match="weight is a torch.Tensor, but others are DTensors"):
        causeway.causal_conv1d_fn(place(t["x"], WHOLE), t["weight"])
    # One of q, k and v is not used.
    x = place(t["x"], WHOLE).requires_grad_()
    q, _, _ = causeway.causal_conv1d_qkv(x, place(t["weight"], WHOLE), sizes=(2, 2, 2), head_dim=2)
    (found,) = torch.autograd.grad(q.sum(), x)
    leaf = t["x"].clone().requires_grad_()
    expected = causeway.causal_conv1d_qkv(leaf, t["weight"], sizes=(2, 2, 2), head_dim=2)[0]
    torch.testing.assert_close(whole(found), torch.autograd.grad(expected.sum(), leaf)[0])
    x, ends = make("cu_seqlens")["x"][0].T, torch.tensor([0, 3, 10])
    found = causeway.causal_conv1d_varlen_states(place(x, Shard(1)), ends, 4)
    assert found.placements == (Shard(1),)
    torch.testing.assert_close(whole(found), causeway.causal_conv1d_varlen_states(x, ends, 4))
    a, b = torch.randn(6, 8).half(), torch.randn(8, 4).half()
    dist.broadcast(a, 0), dist.broadcast(b, 0)
    want = [t.clone().requires_grad_() for t in (a, b)]
    expected = causeway.gemm(*want)
    gradients = torch.autograd.grad(expected.sum(), want)
    for of_a, of_b, of_c in [(Shard(0), WHOLE, Shard(0)), (WHOLE, Shard(1), Shard(1)), (Shard(1), Shard(0), None)]:
        parts = [place(t, p).requires_grad_() for t, p in ((a, of_a), (b, of_b))]
        found = causeway.gemm(*parts)
        assert of_c is None or found.placements == (of_c,)
        torch.testing.assert_close(whole(found), expected)
        for one, other in zip(torch.autograd.grad(found.sum(), parts), gradients):
            torch.testing.assert_close(whole(one), other, atol=2e-3, rtol=2e-3)


if __name__ == "__main__":
    rank, world, address, backend = int(sys.argv[1]), int(sys.argv[2]), f"file://{sys.argv[3]}", sys.argv[4]
    kind = "cpu" if backend == "gloo" else "cuda"
    if kind == "cuda":
        torch.cuda.set_device(rank)
    torch.set_default_device(kind)
    dist.init_process_group(backend, init_method=address, rank=rank, world_size=world)
    torch.set_num_threads(1)
    mesh = init_device_mesh(kind, (world,))
    # First, so that nothing is loaded before.
    compiled(mesh)
    forward(mesh)
    update(mesh)
    others(mesh)
    modules(mesh)
    dist.barrier()
    print("finished", flush=True)
    dist.destroy_process_group()
