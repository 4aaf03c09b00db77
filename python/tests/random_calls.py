"""Random calls of Causeway from PyTorch, each made in one of many contexts and compared with plain PyTorch.

    python python/tests/random_calls.py --seconds 60            draws calls for a minute
    python python/tests/random_calls.py --seed 7 --number 123   draws one of them again
    python python/tests/random_calls.py --list                  says what operations and contexts there are

A plain eager call is compared with float64 (see `random_reference`), and every other context (checkpoints, compilers, transforms, hooks,
threads, …) with the plain call, bit for bit: -0 is not +0, but one NaN is as good as another, and a gradient of None as one of zeros.
Roundings may differ where sums may have another order: in a projection of PyTorch's, in gradients of weights and biases where another
memory order comes into the backward pass, with batches of vmap (gradients, and calls with gates), and in gradients on a GPU. Modules have
to have the bits of the functions that they are made of. Inputs have to be unchanged, and so does the memory between the elements of a
view. A call that fails is made simpler by one choice at a time, and printed as a command that makes it again.
"""

import argparse
import ast
import collections
import os
import sys
import time
import traceback
import warnings

import torch

from random_contexts import CONTEXTS, Wrong
from random_run import CELLS, OPERATIONS, Run


def failure(seed, number, changes=None, device="cpu"):
    """What is wrong with a call, in words; None if nothing is."""
    return outcome(Run(seed, number, changes, device))


def outcome(run):
    """The same of a call that is drawn."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run.check()
    except Wrong as error:
        return str(error)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {last.filename.rpartition('/')[2]}:{last.lineno}: {str(error)[:400]}"
    return None


def simpler(name, value):
    """Simpler values of a choice."""
    if isinstance(value, bool):
        return [False] if value else []
    if isinstance(value, int):
        return [smaller for smaller in (1, 2, value // 2, value - 1) if 0 <= smaller < value]
    plain = "leaf" if name == "given" else "f32" if "dtype" in name else "contiguous" if name.startswith(("layout.", "dy.")) else None
    may_be_none = name in ("activation", "index", "final")
    return [plain] if value is not None and value != plain and (plain or may_be_none) else []


def shrunk(seed, number, words, device="cpu"):
    """Changes of the choices with which a call that was seen to fail still fails, and how."""
    changes, now = {}, failure(seed, number, None, device)
    if now is None:
        # What depends on threads or on earlier calls may not come again.
        return {}, f"{words} (not again)"
    words = now
    again = True
    while again:
        again = False
        for name, value in Run(seed, number, changes, device).choices.items():
            for other in simpler(name, value):
                try:
                    found = failure(seed, number, changes | {name: other}, device)
                except Exception:
                    continue
                # Another failure is another matter: the first words tell.
                if found is not None and found.split(":")[0] == words.split(":")[0]:
                    changes, words, again = changes | {name: other}, found, True
                    break
    return changes, words


def command(seed, number, changes=None):
    """The line that makes a call again."""
    parts = [f"--set {name}={value}" if " " not in str(value) else f"--set '{name}={value}'" for name, value in (changes or {}).items()]
    return " ".join(["python python/tests/random_calls.py", f"--seed {seed} --number {number}", *parts])


def _value(text):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="decides the draws")
    parser.add_argument("--count", type=int, help="so many calls; 1000 unless there are seconds")
    parser.add_argument("--seconds", type=float, help="no call begins after so many")
    parser.add_argument("--number", type=int, help="this call alone")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another choice for the call")
    parser.add_argument("--operation", choices=OPERATIONS, help="this operation alone")
    parser.add_argument("--context", choices=CONTEXTS, help="this context alone")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--list", action="store_true", help="also how many calls passed, of each operation in each context")
    parser.add_argument("--no-shrink", action="store_true", help="print failing calls as they were drawn")
    given = parser.parse_args()
    torch.set_num_threads(1)
    # Without it, cuBLAS refuses projections where algorithms have to be deterministic.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    changes = {name: _value(value) for name, _, value in (text.partition("=") for text in given.set)}
    if given.number is not None:
        run = Run(given.seed, given.number, changes, given.device)
        print(f"{run.operation.name}, {run.context.name}: {run.choices}")
        words = failure(given.seed, given.number, changes, given.device)
        print(words or "passed")
        sys.exit(words is not None)

    is_asked = lambda cell: given.operation in (None, cell[0].name) and given.context in (None, cell[1].name)  # noqa: E731
    if not any(map(is_asked, CELLS)):
        parser.error(f"{given.operation} is not called in the context {given.context!r}")
    count = given.count
    if count is None:
        count = 1000 if given.seconds is None else sys.maxsize
    start, passed, failed, idle, number, done = time.monotonic(), collections.Counter(), 0, 0, 0, 0
    while done < count and (given.seconds is None or time.monotonic() - start < given.seconds):
        operation, context = CELLS[number % len(CELLS)]
        if is_asked((operation, context)):
            done += 1
            run = Run(given.seed, number, None, given.device)
            words = outcome(run)
            if words is None:
                # Where there was nothing to compare, nothing has passed.
                passed[operation.name, context.name] += run.compared > 0
                idle += not run.compared
            else:
                failed += 1
                found = {}
                if not given.no_shrink:
                    found, words = shrunk(given.seed, number, words, given.device)
                print(f"{operation.name}, {context.name}: {words}\n    {command(given.seed, number, found)}", flush=True)
        number += 1
    if given.list:
        for (operation, context), times in sorted(passed.items()):
            print(f"{times:6} {operation}, {context}")
    cells = sum(times > 0 for times in passed.values())
    print(f"{sum(passed.values())} calls passed, {failed} failed and {idle} had nothing to compare, in {cells} of {len(CELLS)} cells, seed {given.seed}")
    sys.exit(failed > 0 or not cells)


if __name__ == "__main__":
    main()
