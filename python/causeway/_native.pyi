"""The extension module: the library's operations, by their tables, and its command.

See the functions of `causeway` instead.
"""

from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, Literal, TypeVar, final

_Tensor = TypeVar("_Tensor")

__version__: str

def empty_cache() -> None: ...
def bypasses_dispatcher(tensors: tuple[object, ...], is_recorded: bool = False) -> bool:
    """True if nothing intercepts operations on PyTorch's tensors, and all are plain ones with memory. Autograd does not count for
    a caller that records the call itself."""

MESSAGE_FLAG_BYTES: int
"""Bytes of a buffer before a message's elements; 0 before the first message."""

MOST_THREADS: int
"""Of a verification."""

def send(tensor: object, buffer: int) -> None:
    """Puts a tensor on a GPU into the buffer at an address, after the message before."""

def receive(tensor: object, buffer: int) -> None:
    """Fills a tensor on a GPU with the message in the buffer at an address, once it is there."""

def send_halo_gradient(inputs: Sequence[object | None], silu: bool, buffer: int) -> bool:
    """Puts the gradient of initial_states, of a backward pass of (x, weight, bias, dy, initial_states, seq_idx, halo_seq_idx), into such a
    buffer. False, and nothing is done, where only the whole pass computes it. `halo_seq_idx`, (batch, width-1), are indices of
    initial_states; without them, these have that of the first position."""

def forward_halo(inputs: Sequence[object | None], silu: bool, y: object) -> None:
    """Computes y of the first width-1 positions again, of a call of (x, weight, bias, residual, initial_states, seq_idx, halo_seq_idx).
    `seq_idx` may be of the first positions alone, here and below."""

def backward_halo(inputs: Sequence[object | None], silu: bool, results: Sequence[object | None]) -> None:
    """Corrects the dx, dweight and dbias that a backward pass without initial_states has given for those of (x, weight, bias, dy,
    initial_states, seq_idx, halo_seq_idx)."""

def main(arguments: Sequence[str]) -> int: ...
def prefer_large_pages(tensor: _Tensor) -> _Tensor:
    """The tensor, just allocated, with large pages advised; operations do so for their results."""

def result_like(tensor: _Tensor) -> _Tensor:
    """Memory for a result like a tensor of PyTorch's, as operations make it."""

def verify(
    suites: Sequence[str],
    case: str | None,
    repeats: int,
    random: int | None,
    seed: int,
    seconds: float | None,
    operations: Sequence[str],
    elements: int | None,
    device: str,
    threads: int,
    progress: Callable[[int, int, int], object] | None,
) -> tuple[str, list[tuple[str, list[str]]]]: ...

@final
class Argument:
    """A tensor of an operation."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> Literal["input", "output", "in_place"]: ...
    @property
    def optional(self) -> bool: ...
    @property
    def axes(self) -> tuple[str, ...]: ...
    @property
    def dtype_of(self) -> str:
        """The argument whose dtype it has."""
    @property
    def is_index(self) -> bool: ...
    @property
    def needs(self) -> str | None:
        """The input without which it has no meaning."""

# What an operation is told besides tensors: whether there is SiLU, or a pair of it and whether products with gates are rounded, or these
# with head_dim, eps and scale of a norm; the name of an algorithm. In `record`, the name of an activation stands for the first.
_Option = bool | str | None | tuple[bool | str | None, bool] | tuple[bool | str | None, bool, int, float, float]

# What stands for an output: a tensor that is written, `...` for one that is to be made if the input that it needs is there, None for
# none. Without a tuple of them, all are made that are required or need an input.
_Outputs = tuple[Any | EllipsisType | None, ...] | None

@final
class Operation:
    """An operation: its table, and the ways to call it, with tensors in the order of the table.

    `inputs` may be fewer than there are. The results are a tuple, with None for what is not there; or the first, if it is the only one.
    """

    @property
    def name(self) -> str: ...
    @property
    def options(self) -> tuple[str, ...]:
        """What it is told besides tensors."""
    @property
    def inputs(self) -> tuple[Argument, ...]: ...
    @property
    def outputs(self) -> tuple[Argument, ...]: ...
    def run(self, inputs: tuple[Any, ...], option: _Option, outputs: _Outputs = None) -> Any: ...
    def run_together(self, calls: Sequence[tuple[tuple[Any, ...], _Option, _Outputs]]) -> list[Any]:
        """The results of several calls, three at most, that know nothing of each other; on a GPU in one launch where that can be."""
    def eager(self, inputs: tuple[Any, ...], option: _Option, outputs: _Outputs = None) -> Any | None:
        """As `run`; None if something intercepts the call, or if Python has to report a bad argument."""
    def record(
        self, inputs: tuple[Any, ...], option: _Option, outputs: _Outputs, is_cast: bool
    ) -> Any | int | None:
        """As `eager`, with autocast and autograd among what may intercept it. For autograd alone, and if no function has been kept
        for such a call: how many inputs take part."""
    def keep(self, count: int, option: _Option, function: Callable[..., Any] | None) -> None:
        """Lets `record` call a function of autograd's with so many inputs, where it would give that number and one result is wanted.
        None forgets the function that was kept."""
    def empty(self, inputs: tuple[Any, ...], outputs: _Outputs = None, algorithm: str | None = None) -> Any:
        """The results, without values; of fake tensors too. An algorithm is checked."""

@final
class Recorded:
    """The forward and the backward pass of a convolution that autograd records, around their kernels.

    `added` has pairs of an input and the result that it is added to.
    """

    def __init__(
        self,
        operations: tuple[Operation, Operation],
        option: _Option,
        places: tuple[Sequence[int], Sequence[int], Sequence[int]],
        added: Sequence[tuple[int, int]],
    ) -> None: ...
    def forward(self, ctx: Any, *inputs: Any) -> Any: ...
    def backward(self, ctx: Any, saved: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The gradient of each input; None if it may have to go through the dispatcher, or if y has none."""

causal_conv1d_forward: Operation
causal_conv1d_gated_packed: Operation
"""The same, with x called `packed`, of which it is a part."""
causal_conv1d_backward: Operation
causal_conv1d_update: Operation
causal_conv1d_varlen_states: Operation
gemm: Operation
gemm_grad_a: Operation
gemm_grad_b: Operation
gemm_grad_ab: Operation
