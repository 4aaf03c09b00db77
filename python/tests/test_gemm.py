"""Matrix products under autograd: against float64, for every layout and wanted gradient, and in a training loop."""

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402

DTYPES = [torch.float16, torch.bfloat16]
ALGORITHMS = ["fast", "exact"]


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def laid_out(matrix, layout):
    """The same values in another memory order."""
    if layout == "transposed":
        return matrix.T.contiguous().T
    if layout == "padded":
        return torch.nn.functional.pad(matrix, (1, 2))[:, 1:-2]
    return matrix


def draw(rows, columns, device, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed + 100 * rows + columns)
    return torch.randn(rows, columns, generator=generator).to(device, dtype)


def assert_rounded(found, left, right):
    """A product that is off by the roundings of its f32 sum and of its elements, and no more."""
    left, right = left.double(), right.double()
    terms = left.shape[1]
    truth, magnitude = left @ right, left.abs() @ right.abs()
    of = torch.finfo(found.dtype)
    bound = terms * 2.0**-24 * magnitude + of.eps / 2 * truth.abs()
    assert ((found.double() - truth).abs() <= bound + of.eps * of.tiny).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("layout", ["rows", "transposed", "padded"])
@pytest.mark.parametrize("sizes", [(33, 29, 47), (64, 128, 32), (1, 1, 1)], ids=str)
def test_values_and_gradients(device, sizes, layout, dtype, algorithm):
    m, n, k = sizes
    a = laid_out(draw(m, k, device, dtype), layout).requires_grad_()
    b = laid_out(draw(k, n, device, dtype, seed=1), layout).requires_grad_()
    grad_c = laid_out(draw(m, n, device, dtype, seed=2), layout)
    c = causeway.gemm(a, b, algorithm=algorithm)
    c.backward(grad_c)
    assert c.dtype == dtype and c.shape == (m, n)
    a64, b64 = a.detach(), b.detach()
    assert_rounded(c.detach(), a64, b64)
    assert_rounded(a.grad, grad_c, b64.T)
    assert_rounded(b.grad, a64.T, grad_c)


@pytest.mark.parametrize("wanted", ["ab", "a", "b"])
def test_a_negated_gradient(device, wanted):
    """As of the imaginary part of a conjugate, whose values PyTorch negates only where it is read."""
    a, b = draw(5, 7, device, torch.float16), draw(7, 6, device, torch.float16, seed=1)
    leaves = [{"a": a, "b": b}[name].requires_grad_() for name in wanted]
    values = draw(5, 6, device, torch.float16, seed=2)
    negated = torch.complex(values.float(), -values.float()).to(torch.complex32).conj().imag
    assert negated.is_neg() and torch.equal(negated, values)
    c = causeway.gemm(a, b)
    expected = torch.autograd.grad(c, leaves, values, retain_graph=True)
    found = torch.autograd.grad(c, leaves, negated)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0)], ids=str)
def test_empty(device, sizes):
    m, n, k = sizes
    a, b = (draw(*s, device, torch.float16).requires_grad_() for s in [(m, k), (k, n)])
    c = causeway.gemm(a, b)
    c.sum().backward()
    assert c.shape == (m, n) and not c.any() and not a.grad.any() and not b.grad.any()


@pytest.mark.parametrize("wanted", ["a", "b"])
def test_only_the_gradient_that_is_wanted(device, wanted):
    t = {"a": draw(5, 6, device, torch.float16), "b": draw(6, 7, device, torch.float16)}
    t[wanted].requires_grad_()
    causeway.gemm(**t).sum().backward()
    assert all((t[name].grad is not None) == (name == wanted) for name in t)


def test_gradients_can_be_differentiated_again(device):
    a, b = (draw(*s, device, torch.bfloat16).requires_grad_() for s in [(5, 6), (6, 7)])
    for product in (causeway.gemm, torch.matmul):
        (grad_a,) = torch.autograd.grad(product(a, b).square().sum(), a, create_graph=True)
        (grad_a * grad_a.detach()).sum().backward()
    # Both have added the same to b.grad.
    twice = b.grad.clone()
    b.grad = None
    (grad_a,) = torch.autograd.grad(torch.matmul(a, b).square().sum(), a, create_graph=True)
    (grad_a * grad_a.detach()).sum().backward()
    torch.testing.assert_close(twice, 2 * b.grad, rtol=0.05, atol=0.05 * b.grad.abs().max().item())


def losses_of_training(product, device, dtype, steps=60):
    """A two-layer perceptron that learns a fixed one, by gradient descent: the loss of every step."""
    x = draw(64, 24, device, torch.float32)
    target = torch.tanh(x @ draw(24, 8, device, torch.float32, seed=1) / 5)
    # Parameters are float32, as in mixed-precision training; the products are in half precision.
    first = (draw(24, 40, device, torch.float32, seed=2) / 5).requires_grad_()
    second = (draw(40, 8, device, torch.float32, seed=3) / 6).requires_grad_()
    optimizer = torch.optim.SGD([first, second], lr=0.5)
    losses = []
    for _ in range(steps):
        hidden = torch.relu(product(x.to(dtype), first.to(dtype)))
        loss = (product(hidden, second.to(dtype)).float() - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_a_perceptron_learns_as_with_pytorch(device, dtype, algorithm):
    found = losses_of_training(lambda a, b: causeway.gemm(a, b, algorithm=algorithm), device, dtype)
    expected = losses_of_training(torch.matmul, device, dtype)
    assert found[-1] < 0.1 * found[0]
    for ours, theirs in zip(found, expected):
        assert abs(ours - theirs) <= 4 * torch.finfo(dtype).eps * theirs


def of(*shape, dtype=torch.float16):
    return torch.ones(*shape, dtype=dtype)


@pytest.mark.parametrize(
    ("function", "matrices", "kind", "words"),
    [
        ("gemm_grad_ab", (of(5, 6), of(5, 7), of(8, 6)), ValueError, "b has K 8: expected 7, the K of a"),
        ("gemm_grad_a", (of(5, 6), of(7, 9)), ValueError, "b has N 9: expected 6, the N of grad_c"),
        ("gemm_grad_b", (of(5, 6), of(4, 9)), ValueError, "a has M 4: expected 5, the M of grad_c"),
        ("gemm_grad_a", (of(5, 6), of(6)), ValueError, r"b has shape \(6,\): expected \(K, N\)"),
        ("gemm_grad_b", (of(5, 6), of(4)), ValueError, r"a has shape \(4,\): expected \(M, K\)"),
        (
            "gemm_grad_a",
            (of(5, 6), of(7, 6, dtype=torch.bfloat16)),
            TypeError,
            "b has dtype bfloat16: expected float16, the dtype of grad_c",
        ),
        (
            "gemm_grad_b",
            (of(5, 6, dtype=torch.float32), of(5, 6, dtype=torch.float32)),
            TypeError,
            "grad_c has dtype float32: expected float16 or bfloat16, the dtypes of a GEMM",
        ),
    ],
)
@pytest.mark.parametrize("way", ["plain", "recorded", "mapped", "autocast"])
def test_wrong_matrices_have_the_same_words_in_every_way(function, matrices, kind, words, way):
    call = getattr(causeway, function)
    grad_c, *others = matrices
    with pytest.raises(kind, match=words):
        if way == "recorded":
            call(grad_c.clone().requires_grad_(), *others)
        elif way == "mapped":
            torch.func.vmap(call, (0, *[None] * len(others)))(torch.stack([grad_c] * 3), *others)
        else:
            with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
                call(*matrices)


def test_wrong_matrices_are_refused_where_they_are_compiled():
    compiled = torch.compile(causeway.gemm_grad_ab, fullgraph=True, backend="aot_eager", dynamic=True)
    assert [tuple(g.shape) for g in compiled(of(5, 6), of(5, 7), of(7, 6))] == [(5, 7), (7, 6)]
    with pytest.raises(Exception, match="b has K 8: expected 7, the K of a"):
        compiled(of(5, 6), of(5, 7), of(8, 6))


def test_autocast_casts_products_and_no_gradients():
    """Whether a gradient is differentiated changes nothing of it."""
    grad_c, b = torch.randn(5, 6).half(), torch.randn(7, 6).half()
    with torch.autocast("cpu", torch.bfloat16):
        assert causeway.gemm(grad_c, b.T).dtype == torch.bfloat16
        plain = causeway.gemm_grad_a(grad_c, b)
        recorded = causeway.gemm_grad_a(grad_c.clone().requires_grad_(), b)
    assert plain.dtype == recorded.dtype == torch.float16
    assert torch.equal(plain, recorded)


@pytest.mark.parametrize("through", ["call", "operator"])
def test_only_what_a_gradient_needs_is_kept(device, through):
    """A frozen weight's gradient would need the activation, which may then be changed."""
    multiply = causeway.gemm if through == "call" else lambda *matrices: torch.ops.causeway.gemm(*matrices, "fast")
    a, b = draw(4, 5, device, torch.float16), draw(5, 3, device, torch.float16)
    leaf = a.clone().requires_grad_()
    x = leaf * 1
    c = multiply(x, b)
    with torch.no_grad():
        x.add_(1)
    c.sum().backward()
    ones = torch.ones(4, 3, device=device, dtype=torch.float16)
    assert torch.equal(leaf.grad, causeway.gemm_grad_a(ones, b))


def test_gradients_are_row_major_whatever_the_matrices_are(device):
    a, b = draw(4, 5, device, torch.float16), draw(7, 5, device, torch.float16).T
    grad_c = draw(4, 7, device, torch.float16)
    both = causeway.gemm_grad_ab(grad_c, a, b)
    assert all(gradient.is_contiguous() for gradient in both)
    assert torch.equal(both[1], causeway.gemm_grad_b(grad_c, a))


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("in_dims", [(0, None), (1, None), (None, 2), (0, 0), (2, 1)])
def test_vmap(device, size, in_dims):
    """Of any operand, and of a batch without entries: values, and the gradients of both, as of PyTorch's product."""
    shapes = [[4, 5], [5, 3]]
    for shape, at in zip(shapes, in_dims):
        if at is not None:
            shape.insert(at, size)
    generator = torch.Generator().manual_seed(size)
    # Integers whose products and sums are exact.
    a, b = (torch.randint(-3, 4, shape, generator=generator).half().to(device).requires_grad_() for shape in shapes)
    dy = torch.randint(-3, 4, (size, 4, 3), generator=generator).half().to(device)
    results = []
    for multiply in (causeway.gemm, torch.matmul):
        c = torch.func.vmap(multiply, in_dims)(a, b)
        results.append((c, *torch.autograd.grad(c, (a, b), dy)))
    assert results[0][0].shape == (size, 4, 3)
    for found, expected in zip(*results):
        assert torch.equal(found, expected)
    with pytest.raises(ValueError, match="K"):
        torch.func.vmap(causeway.gemm, in_dims)(a, torch.randn(*(6 if n == 5 else n for n in shapes[1]), device=device).half())


def test_one_gradient_takes_one_product_more(device, monkeypatch):
    from causeway._torch import operators

    calls, gemm = [], operators.gemm
    monkeypatch.setattr(operators, "gemm", lambda *call: calls.append(1) or gemm(*call))
    a, b = draw(4, 5, device, torch.float16), draw(5, 3, device, torch.float16)
    torch.func.grad(lambda a: causeway.gemm(a, b).float().sum())(a)
    assert len(calls) == 2


def test_an_unknown_algorithm_is_refused_while_exporting():
    class Model(torch.nn.Module):
        def forward(self, a, b):
            return causeway.gemm(a, b, algorithm="fats")

    matrices = draw(4, 5, "cpu", torch.float16), draw(5, 3, "cpu", torch.float16)
    with pytest.raises(Exception, match="expected fast or exact"):
        torch.export.export(Model(), matrices)
