"""One random call: its choices, how it is made, and how what it gives is compared."""

import random
import re

import torch

import random_compiled  # noqa: F401: registers contexts
import random_gradients  # noqa: F401: registers contexts
import random_ranks  # noqa: F401: registers contexts
import random_reference as reference
import random_values  # noqa: F401: registers contexts
import random_written  # noqa: F401: registers contexts
from random_contexts import CONTEXTS, MODULES, Wrong, expect, gradient_of_result
from random_modules import Module, Step
from random_operations import DTYPES, LAYOUTS, Function, Gemm, Packed, QKV, Update, VarlenStates, drawn, laid_out

OPERATIONS = {
    operation.name: operation
    for operation in (
        Function(), Function("BC"), Packed(), QKV(False), QKV(True), Gemm(), Update(""), Update("gated"), Update("qkv"), VarlenStates(),
        *(Module(kind) for kind in MODULES), *(Step(kind) for kind in MODULES),
    )
}  # fmt: skip

CELLS = [(o, c) for c in CONTEXTS.values() for o in OPERATIONS.values() if c.takes(o)]
# So that neighbouring numbers are different operations in different contexts.
random.Random(0).shuffle(CELLS)

DY_LAYOUTS = "contiguous", "contiguous", "transposed", "turned", "sliced", "narrow", "sum", "sum", "negated", "expanded 0", "expanded 2", None


class Outcome:
    """What a call has given."""

    def __init__(self, results, gradients, outs, flags, strides):
        self.results, self.gradients, self.outs, self.flags, self.strides = results, gradients, outs, flags, strides


class Run:
    """One call: its choices, and how it is made and compared."""

    def __init__(self, seed, number, changes=None, device="cpu"):
        self.key, self.device = f"{seed}:{number}", device
        self.operation, self.context = CELLS[number % len(CELLS)]
        self.choices = self._draw() | (changes or {})
        self.specs = self.operation.specs(self.choices)
        self.wanted = [name for name in self.specs if self.choices.get(f"wants.{name}")]
        # Choices of the context, the same for every attempt.
        self.random = random.Random(f"{self.key}:context")
        self._plain, self.truth_flags = None, None
        # How many comparisons the context has had.
        self.compared = 0
        self.operation.prepare(self.choices)

    def _draw(self):
        draw = random.Random(self.key)
        choices = self.operation.draw(draw)
        if self.device != "cpu":
            # GPUs do not compute in float64.
            choices = {name: "f32" if value == "f64" else value for name, value in choices.items()}
        specs = self.operation.specs(choices)
        choices["given"] = draw.choice(("leaf", "leaf", "view"))
        for name, spec in specs.items():
            layout = draw.choice(LAYOUTS)
            choices[f"layout.{name}"] = "sliced" if spec.kind == "out" and layout.startswith("expanded") else layout
            if spec.kind == "input":
                choices[f"wants.{name}"] = draw.random() < 0.6
        inputs = [name for name, spec in specs.items() if spec.kind == "input"]
        if self.context.needs == "gradients" and not any(choices[f"wants.{name}"] for name in inputs):
            choices[f"wants.{draw.choice(inputs)}"] = True
        for at in range(self.operation.results):
            choices[f"dy.{at}"] = draw.choice(DY_LAYOUTS)
        # Final states may not be returned.
        if choices["dy.0"] is None and (choices.get("final") not in ("returned", "both") or draw.random() < 0.5):
            choices["dy.0"] = "contiguous"
        elif all(choices[f"dy.{at}"] is None for at in range(self.operation.results)):
            choices[f"dy.{self.operation.results - 1}"] = "contiguous"
        return choices

    # Tensors.

    def leaf(self, name, tensor, requires_grad):
        """A tensor of the call, as a parameter if it is one of a module."""
        if self.operation.is_module and self.operation.is_parameter(name):
            return torch.nn.Parameter(tensor, requires_grad)
        return tensor.requires_grad_(requires_grad)

    def fresh(self, wanted=None):
        """The tensors of the call, in new memory."""
        wanted = self.wanted if wanted is None else wanted
        tensors = {}
        for name, spec in self.specs.items():
            values = drawn(self.key, name, spec, self.choices)
            # Boundaries and indices that are expanded would be others.
            layout = self.choices.get(f"layout.{name}", "contiguous")
            if layout.startswith("expanded") and spec.kind not in ("input", "seq_idx"):
                layout = "contiguous"
            tensors[name] = self.leaf(name, laid_out(values.to(self.device), layout), name in wanted)
        return tensors

    def bound(self, leaves):
        """The function, and its arguments: the leaves, or views of them."""
        f, given = self.operation.bind(leaves, self.choices)
        if self.choices["given"] == "view":
            given = {name: t.view_as(t) if t.requires_grad and not isinstance(t, torch.nn.Parameter) else t for name, t in given.items()}
        return f, given

    def results(self, leaves):
        """What the call gives."""
        f, given = self.bound(leaves)
        return f(given)

    def dys(self, results):
        """The gradients of all results."""
        return [gradient_of_result(self, result, at) for at, result in enumerate(results)]

    def pointers(self, results):
        """Where results lie."""
        return {result.data_ptr() for result in results}

    # Calls.

    @property
    def is_recorded(self):
        """Whether there are gradients."""
        return bool(self.wanted) and self.operation.has_gradients

    def gradients(self, results, leaves, names=None, through="grad", dys_require=False, **options):
        """The gradients of these inputs, by name; None where there is none."""
        names = self.wanted if names is None else names
        if not self.is_recorded or not torch.is_grad_enabled():
            return None
        used = [(r, dy) for r, dy in zip(results, self.dys(results)) if dy is not None and r.requires_grad]
        if not used:
            return dict.fromkeys(names)
        outputs, dys = zip(*used)
        if dys_require:
            dys = [dy.clone().requires_grad_() for dy in dys]
        if through == "backward":
            torch.autograd.backward(outputs, dys, **options)
            return {name: leaves[name].grad for name in names}
        found = torch.autograd.grad(outputs, [leaves[name] for name in names], dys, allow_unused=True, **options)
        return dict(zip(names, found))

    def attempt(self, wrap=None, with_gradients=True, leaves=None, through="grad"):
        """The call with new tensors, and what it gives. Nothing but outputs may be changed."""
        leaves = self.fresh() if leaves is None else leaves
        before = {name: _memory(t) for name, t in leaves.items()}
        written = {name: leaves[name].detach().clone() for name, spec in self.specs.items() if spec.kind == "out" and name in leaves}
        f, given = self.bound(leaves)
        results = (wrap(f) if wrap else f)(given)
        expect(isinstance(results, tuple) and all(isinstance(r, torch.Tensor) for r in results), "a result is no tensor")
        gradients = self.gradients(results, leaves, through=through) if with_gradients else None
        for name, memory in before.items():
            if name in written:
                # What lies between its elements has to be as it was.
                with torch.no_grad():
                    values = leaves[name].clone()
                    as_before = leaves[name].detach().copy_(written[name])
                    expect(torch.equal(_memory(as_before), memory), f"memory beside {name} was changed")
                    as_before.copy_(values)
            else:
                expect(torch.equal(_memory(leaves[name]), memory), f"{name} was changed")
        return self.outcome(results, gradients, leaves)

    def outcome(self, results, gradients, leaves, flags=True, strides=True):
        """What was given, without graphs."""
        expect(isinstance(results, (tuple, list)), f"results are a {type(results).__name__}")
        outs = {n: leaves[n].detach().clone() for n, spec in self.specs.items() if spec.kind == "out" and n in leaves}
        requires = [r.requires_grad for r in results] if flags else None
        steps = [_strides(r) for r in results] if strides else None
        gradients = gradients and {n: None if g is None else g.detach() for n, g in gradients.items()}
        return Outcome([r.detach() for r in results], gradients, outs, requires, steps)

    @property
    def plain(self):
        """The outcome of the eager call."""
        if self._plain is None:
            self._plain = self.attempt()
        return self._plain

    def functional(self):
        """A function of wanted tensors and of the others, and these."""
        leaves = self.fresh(wanted=())
        wanted = {name: leaves.pop(name).detach() for name in self.wanted}
        others = {name: tensor.detach() for name, tensor in leaves.items()}
        return (lambda wanted, others: self.operation.call(self._ordered({**wanted, **others}), self.choices)), wanted, others

    def _ordered(self, tensors):
        return {name: tensors[name] for name in self.specs}

    def loss(self, results):
        """A sum whose gradients in the results are those that are drawn."""
        used = [(r, dy) for r, dy in zip(results, self.dys(results)) if dy is not None]
        return sum((r * dy).sum() for r, dy in used)

    def transformed(self, transform):
        """The outcome of a transform of the loss, whose values are its results."""
        function, wanted, others = self.functional()

        def loss(wanted, others):
            results = function(wanted, others)
            return self.loss(results), results

        gradients, results = transform(loss)(wanted, others)
        return self.outcome(results, gradients, others, flags=False)

    def mapped(self, with_gradients):
        """vmap over some axis of some tensors against calls of the entries, one by one."""
        draw, size = self.random, self.random.choice((1, 2, 3))
        function, wanted, others = self.functional()
        together = {**wanted, **others}
        batched = {n for n, spec in self.specs.items() if spec.kind == "input" and draw.random() < 0.5}
        is_written = any(spec.kind == "out" for spec in self.specs.values())
        first = next(name for name, spec in self.specs.items() if spec.kind == "input")
        batched |= {first} if not batched or is_written else set()
        batched |= {n for n, spec in self.specs.items() if spec.kind == "out"}
        many, at = {}, {}
        for name, tensor in together.items():
            at[name] = draw.randint(0, tensor.ndim) if name in batched else None
            entries = [tensor if i == 0 else tensor * (1 - i / 4) for i in range(size)]
            entries = [entry.to(tensor.dtype) for entry in entries]
            many[name] = torch.stack(entries, at[name]) if name in batched else tensor
        # Before there is a call, which writes states.
        entries = [{n: (many[n].select(at[n], i) if n in batched else together[n]).clone() for n in self.specs} for i in range(size)]
        in_dims = tuple({n: at[n] for n in part} for part in (wanted, others))
        given = tuple({n: many[n] for n in part} for part in (wanted, others))

        def loss(wanted, others):
            results = function(wanted, others)
            return self.loss(results), results

        def one(wanted, others):
            if with_gradients:
                gradients, results = torch.func.grad(loss, has_aux=True)(wanted, others)
                return (*results, *gradients.values())
            return function(wanted, others)

        def call():
            return torch.func.vmap(one, in_dims)(*given)

        if self.operation.name in ("update", "gated_update", "qkv_update") or getattr(self.operation, "is_step", False):
            self.refused(NotImplementedError, "causal_conv1d_update cannot be called inside of torch.func.vmap", call)
            return
        found = call()
        for i, entry in enumerate(entries):
            needs = self.wanted if with_gradients else ()
            leaves = {n: self.leaf(n, t, n in needs) for n, t in entry.items()}
            f, arguments = self.operation.bind(leaves, self.choices)
            results = f(arguments)
            gradients = self.gradients(results, leaves) if with_gradients else {}
            expected = [r.detach() for r in results]
            if with_gradients:
                expected += [torch.zeros_like(leaves[n]) if gradients[n] is None else gradients[n] for n in wanted]
            expect(len(expected) == len(found), f"{len(found)} results of vmap instead of {len(expected)}")
            has_same_bits = self.device == "cpu" and self.operation.same_bits_mapped and not getattr(self.operation, "gates", "")
            for place, (one_, other) in enumerate(zip(found, expected)):
                compare = self.same if place < len(results) and has_same_bits else self.near
                compare(one_[i], other, f"entry {i} of result {place} of vmap")
            for name, spec in self.specs.items():
                if spec.kind == "out":
                    compare = self.same if has_same_bits else self.near
                    compare(many[name].select(at[name], i), leaves[name], f"entry {i} of {name} of vmap")

    def cast(self, dtype):
        """The outcome of eager calls of tensors that are cast as autocast says."""
        leaves = self.fresh()
        if self.operation.is_module:
            with torch.autocast(torch.device(self.device).type, dtype):
                results = self.operation.composed(leaves, self.choices)
            return self.outcome(results, self.gradients(results, leaves), leaves)
        given, back = dict(leaves), None
        for name, spec in self.specs.items():
            if spec.follows_x and given[name].dtype != torch.float64:
                given[name] = given[name].to(dtype)
        first = given[next(iter(self.specs))].dtype
        for name, spec in self.specs.items():
            if spec.kind != "out" or given[name].dtype == first:
                continue
            if name == "final_states_out":
                given[name] = given[name].to(first)
            else:
                # Computed in float32 from rounded tensors.
                given = {n: t.float() if self.specs[n].follows_x else t for n, t in given.items()}
                back = dtype
        results = [r.to(back) if back else r for r in self.operation.call(given, self.choices)]
        out = leaves.get("final_states_out")
        if out is not None and out.dtype != first:
            out.copy_(given["final_states_out"])
            results[1:] = [r.to(out.dtype) for r in results[1:]]
        return self.outcome(results, self.gradients(results, leaves), leaves)

    # Comparisons.

    def refused(self, kind, words, function, *arguments):
        """The function has to raise an exception of this kind with these words, or a match of this pattern."""
        self.compared += 1
        pattern = re.compile(re.escape(words)) if isinstance(words, str) else words
        try:
            function(*arguments)
        except kind as error:
            expect(pattern.search(str(error)), f"{type(error).__name__} {str(error)!r} lacks {pattern.pattern!r}")
        except Exception as error:
            raise Wrong(f"{type(error).__name__} instead of {kind}: {error}") from error
        else:
            raise Wrong(f"not refused: expected {kind} with {pattern.pattern!r}")

    def same(self, found, expected, words):
        """The same bits, but for those of a NaN; a gradient of None counts as zeros."""
        self.compared += 1
        if found is None or expected is None:
            rest = found if expected is None else expected
            expect(rest is None or not rest.any(), f"{words}: {'None' if found is None else 'a tensor'}, and the other is not")
            return
        expect(found.dtype == expected.dtype, f"{words}: dtype {found.dtype} instead of {expected.dtype}")
        expect(found.shape == expected.shape, f"{words}: shape {tuple(found.shape)} instead of {tuple(expected.shape)}")
        expect(found.device == expected.device, f"{words}: on {found.device} instead of {expected.device}")
        wrong = _bits(found) != _bits(expected)
        if found.is_floating_point():
            # One NaN is as good as another.
            wrong &= ~(found.isnan() & expected.isnan())
        where = [tuple(place) for place in wrong.nonzero().tolist()]
        if where:
            values = f"{found[wrong][:1].tolist()} instead of {expected[wrong][:1].tolist()}"
            raise Wrong(f"{words}: {len(where)} elements differ, the first at {where[0]}: {values}")

    def near(self, found, expected, words):
        """The same within rounding of sums in another order."""
        self.compared += 1
        if found is None or expected is None:
            return self.same(found, expected, words)
        kinds = [(t.dtype, tuple(t.shape)) for t in (found, expected)]
        expect(kinds[0] == kinds[1], f"{words}: {kinds[0]} instead of {kinds[1]}")
        summed_in = torch.float64 if found.dtype is torch.float64 else torch.float32
        unit = 4 * reference.UNIT[found.dtype] + 64 * reference.UNIT[summed_in]
        largest = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
        wrong = ~torch.isclose(found, expected, rtol=unit, atol=unit * largest, equal_nan=True)
        expect(not wrong.any(), f"{words}: {int(wrong.sum())} elements differ by more than rounding")

    def same_flags(self, flags):
        """What depends on an input that requires a gradient does, and of a call without such an input nothing."""
        # One function of autograd's says so of all its results, several operators each of their own.
        right = self.truth_flags is None or all(flag or not true for flag, true in zip(flags, self.truth_flags))
        expect(flags == self.plain.flags or (right and self.is_recorded), f"results require gradients: {flags} instead of {self.plain.flags}")

    def same_kind(self, found, expected, words, strides=True):
        """The same but for values."""
        self.compared += 1
        found, expected = list(found), list(expected)
        expect(len(found) == len(expected), f"{len(found)} {words}s instead of {len(expected)}")
        for at, (one, other) in enumerate(zip(found, expected)):
            # None counts as zeros.
            is_right = (one is None) == (other is None) or (one is None and not other.any())
            expect(is_right, f"{words} {at}: {'None' if one is None else 'a tensor'} of fake tensors")
            if one is not None and other is not None:
                kinds = [(tuple(t.shape), t.dtype, _strides(t) if strides else None) for t in (one, other)]
                expect(kinds[0] == kinds[1], f"{words} {at} of fake tensors: {kinds[0]} instead of {kinds[1]}")

    def compare(self, found, expected, words):
        """Two outcomes, as far as both have something."""
        expect(len(found.results) == len(expected.results), f"{words}: {len(found.results)} results instead of {len(expected.results)}")
        # The projections of PyTorch's are sums in another order where memory has another order.
        has_projections = self.operation.name.startswith("GatedShortConv") and self.context.name != "plain"
        compare = self.near if has_projections else self.same
        for at, (one, other) in enumerate(zip(found.results, expected.results)):
            compare(one, other, f"{words}: result {at}")
        # Of a GPU's results, no memory order is promised.
        if found.strides is not None and expected.strides is not None and self.device == "cpu":
            # Where states are written, those that are returned may be the caller's tensor, laid out as it is, or new.
            count = self.operation.outputs if "final_states_out" in self.specs else None
            steps = [outcome.strides[:count] for outcome in (found, expected)]
            expect(steps[0] == steps[1], f"{words}: results have strides {steps[0]} instead of {steps[1]}")
        expect(found.outs.keys() == expected.outs.keys(), f"{words}: {list(found.outs)} are written instead of {list(expected.outs)}")
        for name, value in found.outs.items():
            compare(value, expected.outs[name], f"{words}: {name}")
        if found.gradients is not None and expected.gradients is not None:
            for name, gradient in found.gradients.items():
                # So are gradients of weights and biases where that of a result may have got another order. A GPU has other kernels then.
                may_differ = self.context.turns and reference.is_sum(name) or self.device != "cpu"
                (self.near if may_differ else compare)(gradient, expected.gradients[name], f"{words}: gradient of {name}")

    def check_values(self):
        """The plain outcome against plain PyTorch in float64."""
        found, tensors = self.plain, self.fresh(wanted=())
        if self.operation.is_module:
            leaves = self.fresh()
            results = self.operation.composed(leaves, self.choices)
            self.compare(found, self.outcome(results, self.gradients(results, leaves), leaves), "module against its functions")
            return
        wide = reference.doubled(tensors, self.wanted)
        truth = self.operation.truth(wide, self.choices)
        expect(len(found.results) == len(truth), f"{len(found.results)} results instead of {len(truth)}")
        absolute = {n: t.detach().abs().requires_grad_(n in self.wanted) if t.is_floating_point() else t for n, t in wide.items()}
        sizes = self._sizes(wide, absolute)
        # That of x, or of the first matrix.
        dtype = next(iter(self.specs.values())).dtype
        for at, (one, other, size) in enumerate(zip(found.results, truth, sizes)):
            is_state = at >= self.operation.outputs
            self._within(f"result {at}", one, other.detach(), size.detach(), f"{at}", dtype, is_state)
        with torch.no_grad():
            for name, value in self.operation.outs(wide, self.choices).items():
                self._within(name, found.outs[name], value, value.abs(), name, is_state=True)
        self.truth_flags = [y.requires_grad for y in truth] if self.is_recorded else [False] * len(truth)
        # A function of autograd's says so of all its results.
        expected = self.truth_flags if self.operation.is_product else [self.is_recorded] * len(truth)
        expect(found.flags == expected, f"results require gradients: {found.flags}")
        if found.gradients is None:
            return
        dys = self.dys(found.results)
        used = [(y, dy.detach().cpu().double(), at) for at, (y, dy) in enumerate(zip(truth, dys)) if dy is not None]
        leaves = [wide[name] for name in self.wanted]
        truths = _gradients([(y, dy) for y, dy, _ in used], leaves)
        bounds = self._sizes_of_gradients(wide, absolute, {at: dy for _, dy, at in used})
        for name, true, size in zip(self.wanted, truths, bounds):
            gradient = found.gradients[name]
            if gradient is None:
                expect(true is None, f"gradient of {name} is None")
                continue
            true = torch.zeros_like(wide[name]) if true is None else true
            size = torch.zeros_like(true) if size is None else size
            self._within(f"gradient of {name}", gradient, true, size, name, tensors[name].dtype)

    def _parts(self, tensors):
        return self.operation.parts(tensors, self.choices)

    def _sizes(self, wide, absolute):
        """The results with every term at its magnitude."""
        operation = self.operation
        if not hasattr(operation, "kind") and not isinstance(operation, Function):
            return operation.truth(absolute, self.choices)
        found = [reference.magnitudes(*both) for both in zip(self._parts(wide), self._parts(absolute))]
        ys = [y for _, _, y in found]
        if isinstance(operation, Update):
            return [operation.placed(y, absolute, self.choices) for y in ys]
        return ys + operation.finals([final for _, final, _ in found], self.choices)

    def _sizes_of_gradients(self, wide, absolute, dys):
        leaves = [absolute[name] for name in self.wanted]
        if self.operation.is_product:
            products = self.operation.truth(absolute, self.choices)
            return _gradients([(y, dys[at].abs()) for at, y in enumerate(products) if at in dys], leaves)
        parts, of_sizes = self._parts(wide), self._parts(absolute)
        count, loss = len(parts), 0.0
        for at, (part, sizes) in enumerate(zip(parts, of_sizes)):
            dfinal = dys.get(count + at)
            if self.operation.name == "qkv" and count in dys:
                dfinal = dys[count].split(self.operation.sizes(self.choices), 1)[at]
            loss = loss + reference.loss_of_magnitudes(part, sizes, dys.get(at), dfinal)
        return torch.autograd.grad(loss, leaves, allow_unused=True) if loss.requires_grad else [None] * len(leaves)

    def _within(self, words, found, truth, size, name, dtype=None, is_state=False):
        dtype = found.dtype if dtype is None else dtype
        expect(found.dtype == dtype, f"{words}: dtype {found.dtype} instead of {dtype}")
        expect(found.shape == truth.shape, f"{words}: shape {tuple(found.shape)} instead of {tuple(truth.shape)}")
        if not is_state:
            terms = self.operation.terms(name, self.choices)
            bound = reference.bound(truth, size, dtype, terms, self.operation.extra(name, self.choices, dtype))
        elif self.operation.copies(self.choices):
            bound = torch.zeros_like(truth)
        else:
            # A product that is rounded once.
            bound = reference.bound(truth, size, dtype, 0)
        # What is too large for the dtype becomes an infinity.
        fits = truth.abs() < 0.9 * torch.finfo(dtype).max
        error = (found.cpu().double() - truth).abs()
        wrong = fits & ~(error <= bound)
        if wrong.any():
            place = tuple(wrong.nonzero()[0].tolist())
            values = f"{float(found[place])} instead of {float(truth[place])}, allowed {float(bound[place]):.3g}"
            expect(False, f"{words}: {int(wrong.sum())} elements of {wrong.numel()} out of bounds, the first at {place}: {values}")

    def check(self):
        """Raises what is wrong."""
        if self.context.casts:
            self._autocast_choices()
        elif self.context.name != "refused":
            self.check_values()
        if self.context.name != "plain":
            self.compared = 0
        for outcome in self.context.function(self) or ():
            self.compare(outcome, self.plain, f"{self.context.name} against plain")
            if outcome.flags is not None and outcome.gradients is not None:
                self.same_flags(outcome.flags)

    def _autocast_choices(self):
        """float32, as what autocast is for; matrices too. States that are written have either dtype."""
        specs, self.autocast_dtype = {}, self.random.choice((torch.bfloat16, torch.float16))
        if self.context.name == "autocast, compiled" and self.choices.get("weight_dtype") in ("f16", "bf16"):
            # PyTorch's own gradient of a split weight fails where it has the other dtype of 16 bits, with a compiler.
            self.autocast_dtype = DTYPES[self.choices["weight_dtype"]]
        for name, spec in self.specs.items():
            if spec.kind == "out" and spec.dtype != torch.float64:
                spec = spec._replace(dtype=self.random.choice((torch.float32, self.autocast_dtype)))
            elif spec.follows_x and spec.dtype != torch.float64:
                spec = spec._replace(dtype=torch.float32)
            specs[name] = spec
        self.specs = specs


def _gradients(outputs, leaves):
    outputs = [(y, dy) for y, dy in outputs if y.requires_grad]
    if not outputs:
        return [None] * len(leaves)
    return torch.autograd.grad([y for y, _ in outputs], leaves, [dy for _, dy in outputs], allow_unused=True)


# Integers that are as large.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor):
    """The elements as integers, in which -0 is not +0."""
    tensor = tensor.detach().resolve_neg().contiguous()
    return tensor.view(BITS[tensor.element_size()]) if tensor.is_floating_point() else tensor


def _strides(tensor):
    """The strides that say where elements lie: of an axis with one element, or of no elements, they say nothing."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride()) if size > 1 and tensor.numel()]


def _memory(tensor):
    """A copy of all bytes that the tensor's memory has, those beside its elements included."""
    storage = tensor.detach().untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage).clone()
