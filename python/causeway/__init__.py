"""Causal depthwise conv1d and f16/bf16 GEMM with gradients, for PyTorch tensors and NumPy arrays.

Tensors are taken as they are: any strides, no copies. PyTorch's may be on an NVIDIA or AMD GPU, where work goes to the
current stream, or on the CPU; they are differentiable and can be compiled. NumPy needs no PyTorch.

    >>> import numpy, causeway
    >>> x = numpy.ones((1, 2, 4), numpy.float32)              # (batch, dim, seqlen)
    >>> weight = numpy.ones((2, 3), numpy.float32)            # (dim, width)
    >>> causeway.causal_conv1d_fn(x, weight)[0, 0]
    array([1., 2., 3., 3.], dtype=float32)

``python -m causeway doctor`` tells what is here, and ``python -m causeway verify``, or `causeway.verify`, checks it against a
float64 oracle.
"""

import importlib
import sys

from causeway import _native
from causeway._flag import flag
from causeway._kind import kind_of
from causeway._gated import causal_conv1d_gated, causal_conv1d_gated_packed, causal_conv1d_gated_update
from causeway._native import __version__
from causeway._qkv import causal_conv1d_qkv, causal_conv1d_qkv_update

__all__ = [
    "causal_conv1d_fn",
    "causal_conv1d_gated",
    "causal_conv1d_gated_packed",
    "causal_conv1d_gated_update",
    "causal_conv1d_qkv",
    "causal_conv1d_qkv_update",
    "causal_conv1d_ref",
    "causal_conv1d_update",
    "causal_conv1d_update_ref",
    "causal_conv1d_varlen_states",
    "empty_cache",
    "gemm",
    "gemm_grad_a",
    "gemm_grad_ab",
    "gemm_grad_b",
    "install_causal_conv1d",
    "install_lfm3",
    "patch_transformers",
    "verify",
    "__version__",
]

# Modules that are imported when they are first asked for: two of them import PyTorch.
_SUBMODULES = ("drop_in", "kernels", "nn", "parallel")


def __getattr__(name):
    """`causeway.nn` and the others without an import of their own (PEP 562)."""
    if name in _SUBMODULES:
        try:
            return importlib.import_module(f"causeway.{name}")
        except ImportError as error:
            # An AttributeError is what hasattr, help() and inspect expect of a name that is not here.
            raise AttributeError(f"causeway.{name} cannot be imported: {error}") from error
    raise AttributeError(f"module 'causeway' has no attribute {name!r}")


def __dir__():
    """The public names, those that have not been imported yet as well."""
    return sorted([*__all__, *_SUBMODULES])


# The calls for each library's tensors, once one has come: neither library is imported before. Until then, nothing is of this type.
_for_torch = None
_for_numpy = None
_Tensor = ()


def _calls(x, argument="x"):
    """The calls for tensors of x's library; errors call it by the name of the argument that it is."""
    global _for_torch, _for_numpy, _Tensor
    # What every call but the first of PyTorch's needs, in words that its compiler can follow.
    if isinstance(x, _Tensor):
        return _for_torch
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        from causeway import _torch

        _for_torch, _Tensor = _torch, torch.Tensor
        return _torch
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.ndarray):
        if _for_numpy is not None:
            return _for_numpy
        from causeway import _numpy

        _for_numpy = _numpy
        return _numpy
    raise TypeError(_no_tensor(argument, x))


def _no_tensor(argument, x):
    """What to say of an object that is no tensor of a library with kernels here."""
    kind, library = type(x).__name__, type(x).__module__.split(".")[0]
    words = f"{argument} is {kind_of(x)}: expected a torch.Tensor or a numpy.ndarray"
    if library in ("jax", "jaxlib"):
        return (
            f"{argument} is a JAX array: pass torch.from_dlpack({argument}) or numpy.asarray({argument}), and "
            "jax.numpy.from_dlpack(y) takes the result back, outside of jax.jit and jax.grad"
        )
    # A proxy has every attribute that it is asked for.
    if library == "torch" and kind == "Proxy":
        return (
            f"{argument} is a torch.fx.Proxy, and symbolic tracing cannot look into this call: give the function that "
            "makes it to torch.fx.wrap, make causeway.nn.CausalConv1d a leaf module, or use torch.export"
        )
    if hasattr(type(x), "__dlpack__"):
        return f"{words}; torch.from_dlpack({argument}) makes one of it without a copy"
    return words


def causal_conv1d_fn(
    x,
    weight,
    bias=None,
    seq_idx=None,
    initial_states=None,
    return_final_states=False,
    final_states_out=None,
    activation=None,
    *,
    cu_seqlens=None,
    residual=None,
):
    """Causal depthwise convolution along a sequence, ``y = act(bias + weight * x) + residual``.

    ``y[b,c,t] = act(bias[c] + sum_w weight[c,w] x[b,c, t-(width-1)+w]) + residual[b,c,t]``, where x before its first
    position is ``initial_states``, or 0.

    Parameters
    ----------
    x : (batch, dim, seqlen); float32, float16, bfloat16, and float64 on a CPU
        Any strides. Channel-last memory, ``(batch, seqlen, dim)`` transposed, is as fast as channel-first.
    weight : (dim, width), width 1 to 256; float32, float16 or bfloat16, whatever x is (float64 if x is)
    bias : (dim,), of weight's dtype, optional
    seq_idx : (batch, seqlen) int32, optional
        A tap counts only where its position carries the output position's index. A negative index is padding: the
        convolution gives 0 there, and the position gives and takes no gradient.
    initial_states : (batch, dim, width-1), of x's dtype, optional
        The positions before the first one; with cu_seqlens ``(n, dim, width-1)``, one row per sequence.
    return_final_states : bool
        Return ``(y, final_states)``, where final_states, of initial_states' shape, are the last width-1 columns of
        ``[initial_states, x]``. With seq_idx, padded positions count as zeros there, and initial_states have the index of the
        first position: they are padding if it is.
    final_states_out : optional
        Tensor that final_states are written to, also where return_final_states is False; under autocast it may be float32.
    activation : None, "silu" or "swish"
    cu_seqlens : (n+1,) int32 or int64, optional
        x is n sequences packed into ``(1, dim, total)``; sequence i lies at ``cu_seqlens[i]:cu_seqlens[i+1]``.
    residual : (batch, dim, seqlen), of x's dtype, optional

    Returns
    -------
    y, of x's shape, dtype and layout; or ``(y, final_states)``.

    Raises
    ------
    ValueError for a shape or an index, TypeError for a dtype, RuntimeError for tensors on different devices, a sparse one or
    an output that shares memory with an input, NotImplementedError for another activation. Nothing is written then. Index
    values on a GPU are not read back: kernels stay within bounds whatever they hold.

    Notes
    -----
    Differentiable in x, weight, bias, initial_states and residual, through y and final_states. Results are the same
    bits from run to run, gradients included. Under autocast, x, initial_states and residual are cast as by
    ``torch.nn.functional.conv1d``; weights are not, since sums are float32 anyway. SiLU of -infinity is 0, its limit, or
    NaN, as ``torch.nn.functional.silu`` has it: which of the two depends on the device and the dtype.

    Examples
    --------
    >>> x = torch.randn(2, 64, 128, requires_grad=True)
    >>> weight, bias = torch.randn(64, 4), torch.randn(64)
    >>> y = causeway.causal_conv1d_fn(x, weight, bias, activation="silu")
    >>> y.sum().backward()
    """
    if type(return_final_states) is not bool:
        return_final_states = flag("return_final_states", return_final_states)
    # The first line of `_calls`: a call of that takes as long as a hundredth of this one.
    calls = _for_torch if isinstance(x, _Tensor) else _calls(x)
    inputs = x, weight, bias, initial_states, seq_idx, cu_seqlens, residual
    return calls.causal_conv1d_fn(inputs, activation, return_final_states, final_states_out)


def causal_conv1d_update(
    x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None
):
    """One or more new positions of every sequence, with the state changed in place. Not differentiable.

    Parameters
    ----------
    x : (batch, dim) or (batch, dim, seqlen); float32, float16, bfloat16, and float64 on a CPU
    conv_state : (batch, dim, state_len), of x's dtype, state_len >= width-1
        The last positions before x. Shifted left by seqlen with x appended, or written as a ring buffer.
    weight : (dim, width), as in `causal_conv1d_fn`
    bias : (dim,), of weight's dtype, optional
    activation : None, "silu" or "swish"
    cache_seqlens : (batch,) int32, optional
        Positions seen so far. conv_state is a ring buffer then: x is written at ``(cache_seqlens + i) % state_len``.
    conv_state_indices : (batch,) int32, optional
        The row of conv_state ``(rows, dim, state_len)`` of each batch entry. A negative index gives 0 and leaves the
        state alone.

    Returns
    -------
    The convolution at the new positions, of x's shape and dtype.

    Notes
    -----
    Under autocast x is cast as in `causal_conv1d_fn`, and the result has autocast's dtype. conv_state keeps its own:
    autocast's or float32, whichever prefill or ``new_state`` has made. A float32 state has SiLU computed in float32: the
    result may be one rounding away from that of prefill.

    Raises
    ------
    As `causal_conv1d_fn`.

    Examples
    --------
    >>> conv_state = torch.zeros(2, 64, 3)
    >>> y = causeway.causal_conv1d_update(torch.randn(2, 64), conv_state, torch.randn(64, 4), activation="silu")
    """
    calls = _for_torch if isinstance(x, _Tensor) else _calls(x)
    inputs = x, weight, bias, cache_seqlens, conv_state_indices
    return calls.causal_conv1d_update(inputs, conv_state, activation)


def causal_conv1d_varlen_states(x, cu_seqlens, state_len):
    """The last state_len positions of every packed sequence, with zeros before short ones. Not differentiable.

    Parameters
    ----------
    x : (total, dim)
    cu_seqlens : (n+1,) int32 or int64
    state_len : int

    Returns
    -------
    states : (n, dim, state_len), of x's dtype; its memory is (n, state_len, dim)

    Examples
    --------
    >>> ends = torch.tensor([0, 3, 10], dtype=torch.int32)
    >>> causeway.causal_conv1d_varlen_states(torch.randn(10, 64), ends, 4).shape
    torch.Size([2, 64, 4])
    """
    calls = _calls(x)
    return calls.causal_conv1d_varlen_states(x, cu_seqlens, state_len)


def causal_conv1d_ref(
    x,
    weight,
    bias=None,
    initial_states=None,
    return_final_states=False,
    final_states_out=None,
    activation=None,
    seq_idx=None,
):
    """`causal_conv1d_fn` in plain operations of PyTorch or NumPy: slow, and easy to read. Computes in weight's dtype.

    Examples
    --------
    >>> y = causeway.causal_conv1d_ref(torch.randn(2, 64, 128), torch.randn(64, 4))
    """
    from causeway import _reference

    return _reference.causal_conv1d_ref(
        x, weight, bias, initial_states, return_final_states, final_states_out, activation, seq_idx
    )


def causal_conv1d_update_ref(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None):
    """`causal_conv1d_update` in plain operations of PyTorch or NumPy: slow, and easy to read.

    Examples
    --------
    >>> y = causeway.causal_conv1d_update_ref(torch.randn(2, 64), torch.zeros(2, 64, 3), torch.randn(64, 4))
    """
    from causeway import _reference

    return _reference.causal_conv1d_update_ref(x, conv_state, weight, bias, activation, cache_seqlens)


def gemm(a, b, *, algorithm="fast"):
    """The product ``a @ b`` of half-precision matrices, summed in float32. Differentiable.

    Parameters
    ----------
    a : (M, K), float16 or bfloat16, any strides
    b : (K, N), of a's dtype
    algorithm : "fast" or "exact"
        "exact" is one chain of fused multiply-adds per element, in increasing k: the same bits on every device.

    Returns
    -------
    c : (M, N), of a's dtype

    Raises
    ------
    As `causal_conv1d_fn`.

    Examples
    --------
    >>> c = causeway.gemm(torch.randn(8, 16).half(), torch.randn(16, 4).half())
    """
    return _calls(a, "a").gemm(a, b, algorithm)


def gemm_grad_a(grad_c, b, *, algorithm="fast"):
    """The gradient of `gemm`'s a, ``grad_c @ b.T``: (M, N), (K, N) -> (M, K).

    Examples
    --------
    >>> grad_a = causeway.gemm_grad_a(torch.randn(8, 4).half(), torch.randn(16, 4).half())
    """
    return _calls(grad_c, "grad_c").gemm_grad_a(grad_c, b, algorithm)


def gemm_grad_b(grad_c, a, *, algorithm="fast"):
    """The gradient of `gemm`'s b, ``a.T @ grad_c``: (M, N), (M, K) -> (K, N).

    Examples
    --------
    >>> grad_b = causeway.gemm_grad_b(torch.randn(8, 4).half(), torch.randn(8, 16).half())
    """
    return _calls(grad_c, "grad_c").gemm_grad_b(grad_c, a, algorithm)


def gemm_grad_ab(grad_c, a, b, *, algorithm="fast"):
    """Both gradients of `gemm` in one call: (M, N), (M, K), (K, N) -> ((M, K), (K, N)).

    Examples
    --------
    >>> c, a, b = (torch.randn(*shape).half() for shape in [(8, 4), (8, 16), (16, 4)])
    >>> grad_a, grad_b = causeway.gemm_grad_ab(c, a, b)
    """
    return _calls(grad_c, "grad_c").gemm_grad_ab(grad_c, a, b, algorithm)


def empty_cache():
    """Give the memory that is kept for the next large results on the host back to the system.

    The memory of a y or a gradient of an input, of 32 to 256 MiB, is kept when its last reference is gone, and reused for the next one of
    the same size; at most 256 MiB are kept for that. A tensor or an array that is still referenced keeps its memory.

    Examples
    --------
    >>> causeway.empty_cache()
    """
    _native.empty_cache()


def install_causal_conv1d():
    """Makes ``import causal_conv1d`` give Causeway, in this process, with no package installed for it.

    Call it before the software that imports ``causal_conv1d``: what has been imported already keeps its functions. It
    replaces the original where that is installed, in ``sys.modules`` and nowhere else, so that both can live in one
    environment.

    Returns
    -------
    An object with ``remove()``, which puts back what was there; it can also be used in a ``with`` statement.

    Examples
    --------
    >>> with causeway.install_causal_conv1d():
    ...     from causal_conv1d import causal_conv1d_fn
    >>> causal_conv1d_fn(torch.ones(1, 1, 4), torch.ones(1, 3))
    tensor([[[1., 2., 3., 3.]]])
    """
    from causeway import drop_in

    return drop_in.install()


def install_lfm3():
    """Gives the LFM3 models of `transformers` Causeway's convolution, in this process.

    LFM3 has width 7, and its module in transformers uses plain PyTorch, whatever packages are there. Models that have
    been made before take part too. seq_idx keeps packed sequences apart, which the plain code does not.

    Returns
    -------
    An object with ``remove()``, which gives the module its own functions back; it can also be used in a ``with``
    statement.

    Raises
    ------
    ImportError without a transformers that has LFM3; RuntimeError for one whose module is made differently.

    Examples
    --------
    >>> with causeway.install_lfm3():                                    # doctest: +SKIP
    ...     model.generate(tokens)
    """
    from causeway.drop_in import lfm3

    return lfm3.install()


def patch_transformers(model):
    """Gives modules of a model of `transformers` the fused operations: gated short convolutions and gated delta nets.

    In LFM2, LFM2-MoE and LFM3, `causal_conv1d_gated`; in Qwen3-Next, Qwen3.5 and Qwen3.5-MoE, `causal_conv1d_qkv`, with the norms of
    q and k. The modules keep their parameters; outputs and gradients are the same within rounding, since what lies between the
    convolution and the gates or norms stays in float32. A call on a part of a model patches that part.

    Returns
    -------
    An object with ``count``, the number of modules, and ``remove()``, which gives them their own forward passes back; it can also be
    used in a ``with`` statement.

    Raises
    ------
    ValueError for a model without such a module; RuntimeError if transformers is older than 5.23.

    Examples
    --------
    >>> patched = causeway.patch_transformers(model)                     # doctest: +SKIP
    """
    from causeway.drop_in import patched

    return patched.patch(model)


def verify(
    random=None,
    *,
    suite=None,
    case=None,
    repeat=1,
    seed=1,
    seconds=None,
    op=None,
    elements=None,
    device=None,
    threads=0,
    progress=None,
):
    """Checks the kernels of this machine, every element of every result, against a float64 oracle.

    The same as ``python -m causeway verify``, in this process: needs neither PyTorch nor NumPy. Ctrl-C ends it after the call that
    runs.

    Parameters
    ----------
    random : int, 1 to 4294967295, optional
        So many calls, drawn at random from everything that the operations allow; 1000 without a suite.
    suite : str or several, optional
        Cases of suites instead: names such as ``"conv1d-first"`` and ``"full"``, or paths of TOML files. What is said of random calls
        cannot be given with it.
    case : str, optional
        Of a suite, only the cases whose names contain this.
    repeat : int
        Each call of a suite so often; each time has to give the bits of the first.
    seed : int
        Decides the draws.
    seconds : float, optional
        No random call begins after so many.
    op : str or several, optional
        Of random calls, only these operations; all by default: "conv1d", "conv1d-update", "conv1d-varlen-states", "gemm", "parity".
    elements : int, optional
        Most elements of x in a random call: by default 2^16 on a CPU, 2^18 in a simulator and 2^23 on a GPU.
    device : str or torch.device, optional
        "cpu", "cpu:avx2", "cuda", "cuda:1", "hip", … or "best", the default, unless CAUSEWAY_DEVICE says otherwise. "sim:32" and
        "sim:64" are simulated GPUs: they run the GPU's kernels on the processor, slowly, and need clang++ 16 or later.
    threads : int
        Of a processor, up to 4096, as for the command; 0 for one per core.
    progress : bool or callable, optional
        A line on stderr while it runs, by default on a terminal; or a function that is called with the numbers of calls
        that are done, asked for and wrong.

    Returns
    -------
    A report: ``passed``, ``count``, ``counts`` by operation, ``failures``, ``worst`` errors, ``evidence`` and ``non_claims`` in
    words, ``facts`` as a dict; ``save(directory)`` writes it as JSON, Markdown and a page. It shows itself as a table in a
    notebook. Nothing is raised for a wrong result.

    Raises
    ------
    ValueError for a suite, an operation or a device that does not exist; RuntimeError for what drivers say, and for a
    simulated GPU where there is no clang++.

    Examples
    --------
    >>> report = causeway.verify(50, op="conv1d-update", device="cpu")
    >>> report.passed, report.count, report.failures
    (True, 50, [])
    """
    from causeway import _verify

    return _verify.verify(random, suite, case, repeat, seed, seconds, op, elements, device, threads, progress)


# Compilers of models trace these functions; what they need is there then.
if hasattr(sys.modules.get("torch"), "Tensor"):
    from torch import Tensor as _Tensor

    from causeway import _torch as _for_torch
