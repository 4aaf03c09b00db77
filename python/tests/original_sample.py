"""A plugin of pytest for the original's tests: the order they run in, and which of them.

With CAUSEWAY_ORIGINAL_SAMPLE, so many of the calls that are small enough for a processor; without, all. Sample and order are the
same every time, and for each worker.
"""

import os
import random


def _parameters(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def _size(item):
    return _parameters(item).get("dim", 1) * _parameters(item).get("seqlen", 1)


def _is_skipped(item):
    """The original has states channel-last only, and its tests skip the rest, and some without a GPU."""
    if item.get_closest_marker("skipif"):
        return True
    wanted = _parameters(item)
    has_states = wanted.get("has_initial_states") or wanted.get("return_final_states")
    return has_states and not wanted.get("channel_last", True)


def pytest_collection_modifyitems(items):
    """Keeps the sample, in random order: neighbours need the same kernels, which workers would all compile at once."""
    count = os.environ.get("CAUSEWAY_ORIGINAL_SAMPLE") or None
    fit = items if count is None else [item for item in items if _size(item) <= 1 << 17 and not _is_skipped(item)]
    fit = sorted(fit, key=lambda item: item.nodeid)
    items[:] = random.Random(0).sample(fit, len(fit) if count is None else min(int(count), len(fit)))
