"""What the operations' tables say, in names and places: compilers that trace these cannot look into the extension's objects."""

from operator import itemgetter

from causeway import _native


class Table:
    """The tensors of an operation."""

    def __init__(self, operation):
        arguments = operation.inputs + operation.outputs
        self.inputs = tuple(argument.name for argument in operation.inputs)
        self.names = tuple(argument.name for argument in arguments)
        self.required = tuple(argument.name for argument in arguments if not argument.optional)
        # Which inputs have x's dtype, and which hold integers.
        self.follows_x = tuple(argument.dtype_of == "x" for argument in operation.inputs)
        self.is_index = tuple(argument.is_index for argument in operation.inputs)


def pick(places, values):
    """As a `picker` does it, in words that compilers can follow."""
    values = (*values, None)
    return tuple([values[at] for at in places])


def picker(places, count):
    """A function that takes what lies at these places out of a tuple of so many values; after the last one comes None."""
    places = list(places)
    if places == list(range(count)):
        return tuple
    take = itemgetter(*places) if len(places) > 1 else lambda values: tuple(values[at] for at in places)
    return (lambda values: take((*values, None))) if count in places else take
