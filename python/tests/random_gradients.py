"""Contexts of random calls in which gradients are taken in other ways: torch.func, vmap, forward mode, hooks of saved tensors, several passes."""

import torch

import random_reference as reference
from random_contexts import context, expect
from random_operations import laid_out


@context("func.grad", "gradients", turns=True)
def _(run):
    # The gradients of results are those of a product, in its memory order.
    if run.wanted:
        yield run.transformed(lambda loss: torch.func.grad(loss, has_aux=True))


@context("func.vjp", "gradients")
def _(run):
    # What is written may not be captured.
    if not run.wanted or "final_states_out" in run.specs:
        return
    function, wanted, others = run.functional()
    results, pull = torch.func.vjp(lambda wanted: function(wanted, others), wanted)
    dys = [torch.zeros_like(r) if dy is None else dy for r, dy in zip(results, run.dys(results))]
    (gradients,) = pull(tuple(dys))
    yield run.outcome(results, gradients, {}, flags=False)


@context("func.functionalize")
def _(run):
    """PyTorch's functionalization has no rule for functions of autograd's, and says so."""
    leaves = run.fresh(wanted=())
    try:
        results = torch.func.functionalize(lambda given: run.operation.call(given, run.choices))(leaves)
    except RuntimeError as error:
        expect("NYI: Functionalize rule" in str(error) or "custom (non-ATen) operator" in str(error), str(error))
        run.compared += 1
        return
    yield run.outcome(results, None, leaves)


@context("jvp", "gradients")
def _(run):
    """Forward mode is refused."""
    if not run.wanted:
        return
    function, wanted, others = run.functional()
    name = "gemm" if run.operation.is_product else "causal convolution"
    call = lambda: torch.func.jvp(lambda wanted: function(wanted, others), (wanted,), (wanted,))  # noqa: E731
    run.refused(NotImplementedError, f"{name} has no forward-mode gradient", call)


@context("jacobian", "gradients", without=("GatedShortConv",))
def _(run):
    """Rows of jacrev's against gradients; derivatives of it, and those of forward mode, are refused."""
    # What is written may not be captured.
    if not run.wanted or "final_states_out" in run.specs:
        return
    function, wanted, others = run.functional()
    name = run.random.choice(run.wanted)
    leaves = run.fresh()
    results = run.results(leaves)
    # PyTorch's jacrev asserts that results have elements.
    if not all(r.numel() for r in results) or leaves[name].numel() * sum(r.numel() for r in results) > 2**17:
        return
    one = lambda value: function({**wanted, name: value}, others)  # noqa: E731
    found = torch.func.jacrev(one, chunk_size=run.random.choice((None, 1, 7)))(wanted[name])
    for at, (result, jacobian) in enumerate(zip(results, found)):
        expect(jacobian.shape == result.shape + leaves[name].shape, f"jacobian {at} has shape {tuple(jacobian.shape)}")
        for _ in range(3):
            place = tuple(run.random.randrange(size) for size in result.shape)
            dy = torch.zeros_like(result)
            dy[place] = 1
            gradient = None
            if result.requires_grad:
                (gradient,) = torch.autograd.grad(result, leaves[name], dy, retain_graph=True, allow_unused=True)
            # As with all batches of vmap.
            run.near(jacobian[place], torch.zeros_like(leaves[name]) if gradient is None else gradient, f"row {place} of jacobian {at}")
    kind = "gemm" if run.operation.is_product else "causal convolution"
    for transform in (torch.func.jacfwd, torch.func.hessian):
        run.refused(NotImplementedError, f"{kind} has no forward-mode gradient", lambda: transform(one)(wanted[name].contiguous()))
    # Gradients of products are products, which have gradients.
    if name != "residual" and not run.operation.is_product and leaves[name].numel() and any(jacobian.any() for jacobian in found):
        twice = torch.func.jacrev(lambda value: torch.func.grad(lambda value: run.loss(one(value)))(value))
        run.refused(NotImplementedError, "cannot be differentiated twice", lambda: twice(wanted[name]))
    return
    yield


@context("vmap")
def _(run):
    run.mapped(with_gradients=False)
    return
    yield


@context("vmap of grad", "gradients")
def _(run):
    if run.wanted:
        run.mapped(with_gradients=True)
    return
    yield


@context("saved tensors on the host", "gradients")
def _(run):
    with torch.autograd.graph.save_on_cpu():
        yield run.attempt()


@context("saved tensors as copies", "gradients", turns=True)
def _(run):
    """In another memory order, once each."""
    hooks = lambda t: laid_out(t, "sliced"), lambda t: t.contiguous()  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        yield run.attempt()


@context("saved tensors forbidden", "gradients")
def _(run):
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        yield run.attempt()


@context("backward twice", "gradients")
def _(run):
    leaves = run.fresh()
    results = run.results(leaves)
    for retain in (True, False):
        yield run.outcome(results, run.gradients(results, leaves, retain_graph=retain), leaves)


@context("grad accumulated", "gradients")
def _(run):
    """Into .grad, by two backward passes of two forward passes; and where a tensor is read twice."""
    if not run.wanted:
        return
    leaves = run.fresh()
    for count in (1, 2):
        results = run.results(leaves)
        run.gradients(results, leaves, through="backward")
        for name in run.wanted:
            one = run.plain.gradients[name]
            found, expected = leaves[name].grad, one if one is None or count == 1 else one + one
            run.same(found, expected, f"gradient of {name} after {count} backward passes")
            is_result = found is not None and found.numel() and found.data_ptr() in run.pointers(results)
            expect(not is_result, f".grad of {name} is a result")
    return
    yield


@context("subset", "gradients")
def _(run):
    """The gradients of some inputs, one after the other."""
    leaves = run.fresh()
    results = run.results(leaves)
    for name in run.wanted:
        found = run.gradients(results, leaves, names=(name,), retain_graph=True)
        run.same(found[name], run.plain.gradients[name], f"gradient of {name} alone")
    return
    yield


@context("create_graph", "gradients")
def _(run):
    leaves = run.fresh()
    results = run.results(leaves)
    yield run.outcome(results, run.gradients(results, leaves, create_graph=True), leaves)


@context("second derivative", "gradients", without=("gemm", "GatedShortConv"))
def _(run):
    """Refused. That of a product is not, since its gradients are products; nor is that of projections."""
    names = [name for name in run.wanted if name != "residual"]
    leaves = run.fresh()
    results = run.results(leaves)
    if not names or not any(r.requires_grad and dy is not None for r, dy in zip(results, run.dys(results))):
        return
    found = run.gradients(results, leaves, names=names, create_graph=True, dys_require=True)
    firsts = [one for one in found.values() if one is not None and one.requires_grad]
    if not firsts:
        return
    call = lambda: torch.autograd.grad([one.sum() for one in firsts], [leaves[n] for n in names], allow_unused=True)  # noqa: E731
    run.refused(NotImplementedError, "cannot be differentiated twice", call)


@context("batched gradients", "gradients")
def _(run):
    leaves = run.fresh()
    results = run.results(leaves)
    dys = run.dys(results)
    used = [(r, dy) for r, dy in zip(results, dys) if dy is not None and r.requires_grad]
    if not used or not run.wanted:
        return
    outputs, dys = zip(*used)
    dys = [torch.stack([dy, torch.zeros_like(dy), dy]) for dy in dys]
    names = [name for name in run.wanted if run.plain.gradients[name] is not None]
    found = torch.autograd.grad(outputs, [leaves[n] for n in names], dys, is_grads_batched=True)
    for name, gradient in zip(names, found):
        # On a GPU, more channels may have another kernel.
        compare = run.near if reference.is_sum(name) or run.operation.is_module or run.device != "cpu" else run.same
        for at in (0, 2):
            compare(gradient[at], run.plain.gradients[name], f"batched gradient of {name}")
        expect(not gradient[1].any(), f"batched gradient of {name} of zeros is not zero")
    return
    yield
