"""Memory of large results on a processor: the next result of its size gets it once nobody else holds it, and not before."""

import threading

import causeway
import numpy as np
import pytest

torch = pytest.importorskip("torch")

# 48 MiB in f32: the allocator would give so much back to the system.
SHAPE = 3, 1024, 4096
has_functions = pytest.mark.skipif(
    not hasattr(getattr(torch._C, "_dynamo", None), "guards") or not hasattr(torch._C, "_storage_Use_Count"),
    reason="this PyTorch makes results by other functions",
)


@pytest.fixture(autouse=True)
def nothing_kept():
    causeway.empty_cache()
    yield
    causeway.empty_cache()


@pytest.fixture(scope="module")
def call():
    x, weight = torch.randn(SHAPE), torch.randn(SHAPE[1], 4)
    return lambda x=x: causeway.causal_conv1d_fn(x, weight, activation="silu")


@has_functions
def test_the_next_result_gets_the_memory_of_one_that_is_gone(call):
    y = call()
    expected, address = y.clone(), y.data_ptr()
    del y
    again = call()
    assert again.data_ptr() == address and torch.equal(again, expected)
    assert again.storage_offset() == 0 and again.untyped_storage().nbytes() == again.nbytes and not again._is_view()


@has_functions
def test_gradients_too(call):
    x = torch.randn(SHAPE, requires_grad=True)
    addresses = set()
    for _ in range(3):
        y = call(x)
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
        addresses |= {y.data_ptr(), dx.data_ptr()}
        del y, dx
    assert len(addresses) == 2


@has_functions
def test_gradients_of_a_packed_tensor_too():
    packed, weight = torch.randn(1, 3 * 1024, 4096, requires_grad=True), torch.randn(1024, 4)
    addresses = set()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(causeway.causal_conv1d_gated_packed(packed, weight).sum(), packed)
        addresses.add(gradient.data_ptr())
        del gradient
    assert len(addresses) == 1


@has_functions
@pytest.mark.parametrize(
    "holder",
    [
        lambda y: y,
        lambda y: y[1:2, 5],
        lambda y: y.numpy(),
        lambda y: y.untyped_storage(),
        lambda y: torch.utils.dlpack.to_dlpack(y),
        lambda y: (y.requires_grad_() ** 2).sum().grad_fn,
        lambda y: torch.nn.Parameter(y),
    ],
    ids=["itself", "view", "array", "storage", "dlpack", "autograd", "parameter"],
)
def test_a_result_that_somebody_has_is_left_alone(call, holder):
    y = call()
    address, held = y.data_ptr(), holder(y)
    del y
    assert call().data_ptr() != address
    del held


def is_mapped(address):
    with open("/proc/self/maps") as maps:
        ranges = [line.split()[0].split("-") for line in maps]
    return any(int(start, 16) <= address and address + 4096 <= int(end, 16) for start, end in ranges)


@has_functions
def test_memory_that_processes_share_is_let_go(call):
    y = call().share_memory_()
    address = y.data_ptr()
    del y
    assert is_mapped(address)
    assert call().data_ptr() != address and not is_mapped(address)


@has_functions
def test_a_storage_that_was_resized_is_let_go(call):
    y = call()
    y.untyped_storage().resize_(y.nbytes * 4)
    address = y.data_ptr()
    del y
    again = call()
    assert again.data_ptr() != address and again.untyped_storage().nbytes() == again.nbytes
    assert not is_mapped(address)


@has_functions
def test_another_size_gets_other_memory(call):
    y = call()
    address = y.data_ptr()
    del y
    smaller = call(torch.randn(SHAPE[0], SHAPE[1], SHAPE[2] - 8))
    assert smaller.data_ptr() != address
    assert smaller.untyped_storage().nbytes() == smaller.nbytes


@has_functions
def test_memory_goes_back_when_it_is_asked_for(call):
    y = call()
    address = y.data_ptr()
    del y
    causeway.empty_cache()
    assert not is_mapped(address)


@has_functions
def test_no_more_than_so_much_is_kept(call):
    # Eight of 48 MiB at once; 256 MiB are remembered.
    many = [call() for _ in range(8)]
    addresses = [y.data_ptr() for y in many]
    del many
    some = [call() for _ in range(8)]
    assert len({y.data_ptr() for y in some} & set(addresses[3:])) == 5


@has_functions
def test_threads_get_memory_of_their_own(call):
    expected = call()
    wrong = []

    def work():
        for _ in range(4):
            y = call()
            if not torch.equal(y, expected):
                wrong.append(y)
            del y

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("layout", ["channel-first", "channel-last"])
def test_arrays_too(layout):
    x, weight = np.random.default_rng(0).random(SHAPE, np.float32), np.ones((SHAPE[1], 4), np.float32)
    if layout == "channel-last":
        x = np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    y = causeway.causal_conv1d_fn(x, weight)
    expected, address, strides = y.copy(), y.ctypes.data, y.strides
    view = y[1:, 3]
    del y
    other = causeway.causal_conv1d_fn(x, weight)
    assert other.ctypes.data != address
    del view
    again = causeway.causal_conv1d_fn(x, weight)
    assert again.ctypes.data == address and again.strides == strides == x.strides
    assert again.flags.writeable and np.array_equal(again, expected) and np.array_equal(other, expected)
