"""A plugin of pytest for the original's tests: the calls that are small enough for a processor, and of those a sample.

CAUSEWAY_ORIGINAL_SAMPLE is how many run; the sample is the same every time.
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
    """Keeps the sample."""
    fit = sorted((i for i in items if _size(i) <= 1 << 17 and not _is_skipped(i)), key=lambda item: item.nodeid)
    count = int(os.environ["CAUSEWAY_ORIGINAL_SAMPLE"])
    items[:] = random.Random(0).sample(fit, min(count, len(fit)))
