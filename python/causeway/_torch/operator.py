"""How an operator of PyTorch's dispatcher is made of an operation's table: its schema, its kernel and its fake kernel."""

from typing import Any, NamedTuple

import torch

from causeway._activation import DEFAULTS
from causeway._torch.eager import require_one_device
from causeway._torch.tables import Table, picker
from causeway._torch.twice import current_call

library = torch.library.Library("causeway", "DEF")

# Compilers keep the order of strides that they have traced: outputs are laid out like x.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)


def define(schema, kernel, fake):
    """Makes one operator; its kernel takes tensors of any device that the extension module takes."""
    name = schema.split("(", 1)[0]
    library.define(schema, tags=_TAGS)
    library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"causeway::{name}", fake, lib=library)
    return getattr(torch.ops.causeway, name).default


# The types of options in schemas; all others are flags.
_TYPES = {"algorithm": "str", "head_dim": "int", "eps": "float", "scale": "float"}


class _Argument(NamedTuple):
    """An argument of an operator."""

    name: str
    schema: str
    # What it stands for in the table, whether it is a tensor of it, and whether it asks for one.
    of: str
    tensor: Any = None
    asks: bool = False


def _arguments(operation, order, is_out):
    """The arguments of an operator: of the function with all outputs, those that do not come by themselves."""
    tensors = {tensor.name: tensor for tensor in operation.inputs + operation.outputs}
    letters = iter("abcdefgh")
    for name, default in order.items():
        tensor = tensors.get(name)
        if tensor is None:
            yield _Argument(name, f"{_TYPES.get(name, 'bool')} {name}{default}", name)
            continue
        kind = "Tensor?" if tensor.optional else "Tensor"
        if tensor.role == "input":
            yield _Argument(name, f"{kind} {name}{default}", name, tensor)
        elif is_out or tensor.role == "in_place":
            kind = kind.replace("Tensor", f"Tensor({next(letters)}!)")
            yield _Argument(name, f"{kind} {name}{default}", name, tensor)
        elif tensor.optional and not tensor.needs:
            wants = f"wants_{name.removeprefix('final_')}"
            yield _Argument(wants, f"bool {wants}", name, asks=True)


class Operator:
    """An operator that is called as its operation is: with inputs, option and outputs in the order of the table.

    It makes its results. One with "_out" at the end of its name writes them where they are given, and returns nothing.
    """

    def __init__(self, operation, order, is_out=False):
        self.arguments = tuple(_arguments(operation, order, is_out))
        self.results = tuple(tensor for tensor in operation.outputs if tensor.role == "output")
        self._operation, self._is_out = operation, is_out
        # By the name of a call that has other names for its arguments: the operation with these.
        self.of_calls = {}
        self._count, self._input_count = len(self.arguments), len(operation.inputs)
        # Where the operator's arguments are in the table, and what the table has among the operator's arguments.
        names = [tensor.name for tensor in operation.inputs], [tensor.name for tensor in operation.outputs]
        table = [*names[0], *operation.options, *names[1]]
        self._places = tuple((table.index(argument.of), argument.asks) for argument in self.arguments)
        self._at = {argument.of: at for at, argument in enumerate(self.arguments)}
        self._options = [self._at[option] for option in operation.options]
        self._has_algorithm = "algorithm" in operation.options
        self._inputs = picker([self._at[tensor.name] for tensor in operation.inputs], self._count)
        # Where outputs are given or asked for; nowhere if all of them come by themselves.
        self._outputs = [self._at.get(tensor.name) for tensor in operation.outputs]
        self._makes_all = self._outputs.count(None) == len(self._outputs)
        self._asked = [
            place for place, at in enumerate(self._outputs) if at is not None and self.arguments[at].asks
        ]
        # The input whose dtype each result has.
        self._dtypes = [table.index(result.dtype_of) for result in self.results]
        name = f"{operation.name}_out" if is_out else operation.name
        tensors = ["Tensor"] * (0 if is_out else len(self.results))
        returned = tensors[0] if len(tensors) == 1 else f"({', '.join(tensors)})"
        schema = f"{name}({', '.join(argument.schema for argument in self.arguments)}) -> {returned}"
        self.overload = define(schema, self._kernel, self._fake)

    def flat(self, inputs, option, outputs=()):
        """The arguments of the operator. Outputs that come by themselves need not stand there."""
        # The last inputs may be missing.
        missing = (None,) * (self._input_count - len(inputs))
        options = option if type(option) is tuple else (option,)
        options = (*options, *DEFAULTS[len(options) :])[: len(self._options)]
        table = *inputs, *missing, *options, *outputs
        return [table[place] is not None if asks else table[place] for place, asks in self._places]

    def __call__(self, inputs, option, outputs=()):
        """The results."""
        return self.overload(*self.flat(inputs, option, outputs))

    def there(self, arguments):
        """Whether a call with these arguments of the operator has each of its results."""
        asked, there, arguments = self._at, [], self._padded(arguments)
        for result in self.results:
            if result.name in asked:
                there.append(bool(arguments[asked[result.name]]))
            else:
                there.append(result.needs is None or arguments[asked[result.needs]] is not None)
        return there

    def value(self, name, arguments):
        """What a call with these arguments of the operator has for one of them; None where it is left out."""
        return self._padded(arguments)[self._at[name]]

    def option(self, arguments):
        """What is said besides tensors among the arguments of the operator."""
        return self._option(self._padded(arguments))

    def _option(self, arguments):
        if not self._options:
            return None
        # One that is left out has its default.
        option, *others = [
            default if arguments[at] is None else arguments[at] for at, default in zip(self._options, DEFAULTS)
        ]
        if len(others) > 1 and others[1] != 0:
            return (option, *others)
        return (option, True) if others and others[0] else option

    def _named(self):
        """The operation, with the names that the call has for its arguments."""
        return self.of_calls.get(current_call(), self._operation)

    def _kernel(self, *arguments):
        arguments = self._padded(arguments)
        inputs, outputs = self._of_table(arguments)
        results = self._named().run(inputs, self._option(arguments), outputs)
        if self._is_out:
            return None
        return results if len(self._dtypes) == 1 else self._returned(inputs, results)

    def _fake(self, *arguments):
        operation, arguments = self._named(), self._padded(arguments)
        inputs, outputs = self._of_table(arguments)
        given = zip(Table(operation).names, (*inputs, *(outputs or ())))
        require_one_device({name: value for name, value in given if isinstance(value, torch.Tensor)})
        algorithm = self._option(arguments) if self._has_algorithm else None
        results = operation.empty(inputs, outputs, algorithm)
        if self._is_out:
            return None
        return results if len(self._dtypes) == 1 else self._returned(inputs, results)

    def _padded(self, arguments):
        """All arguments: PyTorch leaves out the last ones where they have their default, which counts as None."""
        missing = self._count - len(arguments)
        return (*arguments, *(None,) * missing) if missing else arguments

    def _of_table(self, arguments):
        """Inputs and outputs in the order of the table, from all arguments."""
        if self._makes_all:
            return self._inputs(arguments), None
        outputs = [... if at is None else arguments[at] for at in self._outputs]
        for place in self._asked:
            outputs[place] = ... if outputs[place] else None
        return self._inputs(arguments), tuple(outputs)

    def _returned(self, inputs, results):
        """Several results, with a tensor for each that is not there."""
        if not isinstance(results, tuple):
            results = (results, *(None,) * (len(self._dtypes) - 1))
        return tuple([
            inputs[like].new_empty((0,)) if result is None else result
            for result, like in zip(results, self._dtypes)
        ])  # fmt: skip
