"""Contexts of random calls of tensors that ranks of a process group share.

Of `DTensor` there is one rank alone: what is checked is that each placement is taken, and which PyTorch makes of it. The convolution of a
sequence over ranks has two processes, the second of which is started once and makes the calls that it is told.
"""

import atexit
import contextlib
import functools
import itertools
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist

import causeway
from random_contexts import context, expect


@contextlib.contextmanager
def _alone():
    """A mesh of this process, with one axis or two, and no group afterwards."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield dist.device_mesh.init_device_mesh
    finally:
        dist.destroy_process_group()


@context("DTensor", only=("fn", "gated", "packed", "qkv", "gemm", "update", "gated_update", "qkv_update", "varlen_states"))
def _(run):
    """Placed in any way on one rank: the call on the rank's tensors, or, of a state that cannot be changed where it is, an error."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    draw = run.random
    if run.operation.name.startswith("qkv") and not all(result.numel() for result in run.plain.results):
        # PyTorch does not get to an end with a view of a DTensor that has no elements.
        return
    with _alone() as make_mesh:
        mesh = make_mesh(torch.device(run.device).type, draw.choice(((1,), (1, 1))))
        leaves, refusal = run.fresh(), None
        names = [name for name, tensor in leaves.items() if tensor.is_floating_point()]
        # One that is no DTensor, where it has to be told from a rank's part.
        plain = draw.choice(names) if len(names) > 1 and draw.random() < 0.2 and run.operation.name in ("fn", "gated", "packed") else None
        of_all = draw.choice(([Replicate()], [Replicate(), Shard(0)], [Replicate(), Shard(0), Shard(1), Shard(2)]))
        given = {}
        for name, tensor in leaves.items():
            # Plain indices are those of every rank.
            if name != plain and (tensor.is_floating_point() or draw.random() < 0.4):
                fitting = [p for p in of_all if p == Replicate() or p.dim < tensor.ndim]
                given[name] = DTensor.from_local(tensor, mesh, [draw.choice(fitting) for _ in range(mesh.ndim)], run_check=False)
            else:
                given[name] = tensor
            if name == "conv_state" and not _stays(given[name].placements, "conv_state_indices" in leaves):
                refusal = "conv_state has placement"
        f = lambda: run.operation.call(given, run.choices)  # noqa: E731
        if refusal or plain:
            run.refused(ValueError if refusal else TypeError, refusal or f"{plain} is a torch.Tensor, but others are DTensors", f)
            return
        if "final" in run.choices and "final_states_out" not in leaves:
            # PyTorch keeps what it knows of a call, and must not take it for one that has other results.
            run.operation.call(given, {**run.choices, "final": None if run.choices["final"] else "returned"})
        results = f()
        expect(all(isinstance(r, DTensor) for r in results), "a result is no DTensor")
        results = [r.to_local() if draw.random() < 0.5 else r.full_tensor() for r in results]
        yield run.outcome(results, run.gradients(results, leaves), leaves, flags=False, strides=False)


def _stays(placements, has_indices):
    """Whether a state can be changed where it is: whole, by channels, or by batch where rows are not chosen."""
    return all(p.is_replicate() or p.dim == 1 or (p.dim == 0 and not has_indices) for p in placements)


# Sequences over two ranks.

TIMEOUT = 240
# A slice of each rank's x; the other tensors are the same on both.
SLICED = "x", "residual", "seq_idx"


@contextlib.contextmanager
def _two(rank, address):
    """The process group of both."""
    from datetime import timedelta

    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=2, timeout=timedelta(seconds=TIMEOUT))
    try:
        yield
    finally:
        dist.destroy_process_group()


@functools.cache
def _folder():
    """Of the files by which groups find together. It stays: the end of a group looks for its file, until a timeout."""
    return tempfile.TemporaryDirectory()


_count = itertools.count()


@functools.cache
def _other():
    """The second rank's process."""
    # The same order of imports, so that numbers are the same calls.
    program = "import random_run, random_ranks; random_ranks.serve()"
    # The package may be found by this process alone, as in a test that was given its folder.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", program], cwd=pathlib.Path(__file__).parent, env=environment, **pipes)
    atexit.register(process.kill)
    return process


def _part(run, rank, cut):
    """What one rank gives: results and gradients by name. The loss is that of the whole call, of which a rank sees a part."""
    leaves = run.fresh()
    length = run.choices["seqlen"]
    here = slice(0, cut) if rank == 0 else slice(cut, length)
    given = {name: tensor[..., here] if name in SLICED else tensor for name, tensor in leaves.items()}
    options = {name: given.get(name) for name in ("bias", "seq_idx", "initial_states", "cu_seqlens", "residual")}
    has_states = run.choices["final"] == "returned"
    found = causeway.parallel.causal_conv1d_fn(
        given["x"], given["weight"], return_final_states=has_states, activation=run.choices["activation"], **options
    )
    y, *states = found if has_states else (found,)
    dys = run.dys(run.plain.results)
    loss = 0 * y.sum() if dys[0] is None else (y * dys[0][..., here]).sum()
    if states and dys[1] is not None:
        loss = loss + (states[0] * dys[1]).sum()
    gradients = torch.autograd.grad(loss, [leaves[name] for name in run.wanted], allow_unused=True) if loss.requires_grad else ()
    return [y.detach(), *(s.detach() for s in states)], dict(zip(run.wanted, gradients))


@context("over ranks", only=("fn",))
def _(run):
    """A sequence that is cut over two processes: y and the gradient of x are those of one device, and the others sum up to them."""
    # Ranks have no such argument, nor both kinds of indices.
    if "final_states_out" in run.specs or run.device != "cpu":
        return
    cut = run.random.randint(0, run.choices["seqlen"])
    seed, number = map(int, run.key.split(":"))
    address = pathlib.Path(_folder().name, f"{next(_count)}")
    try:
        pickle.dump((seed, number, run.choices, cut, address), _other().stdin)
        _other().stdin.flush()
        with _two(0, address):
            (y, *states), gradients = _part(run, 0, cut)
            words, found = pickle.load(_other().stdout)
            # What one has sent has to arrive before its group ends.
            dist.barrier()
    except Exception:
        # It may wait for this one.
        _other().kill()
        _other.cache_clear()
        raise
    expect(found is not None, f"the second rank: {words}")
    (other_y, *other_states), other_gradients = found
    run.same(torch.cat([y, other_y], 2), run.plain.results[0], "y of both ranks")
    for one, other in zip(states, other_states):
        run.same(one + other, run.plain.results[1], "final states of both ranks")
    for name in run.wanted:
        parts = [g for g in (gradients.get(name), other_gradients.get(name)) if g is not None]
        run.near(sum(parts) if parts else None, run.plain.gradients[name], f"gradient of {name} of both ranks")
    return
    yield


def serve():
    """The second rank's part of each call that it is told."""
    from random_run import Run

    torch.set_num_threads(1)
    while True:
        try:
            seed, number, choices, cut, address = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        words, found = None, None
        with _two(1, address):
            try:
                found = _part(Run(seed, number, choices), 1, cut)
            except Exception as error:
                words = f"{type(error).__name__}: {error}"
            pickle.dump((words, found), sys.stdout.buffer)
            sys.stdout.buffer.flush()
            dist.barrier()
