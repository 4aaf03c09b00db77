"""What the documentation shows: every example in a docstring, and the README's."""

import doctest
import re

import numpy
import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402

NAMES = {"causeway": causeway, "numpy": numpy, "torch": torch}
FINDER = doctest.DocTestFinder(recurse=False)
DOCUMENTED = [
    ("causeway", causeway),
    *((name, getattr(causeway, name)) for name in causeway.__all__ if name != "__version__"),
    ("kernels", causeway.kernels),
    ("CausalConv1d", causeway.nn.CausalConv1d),
]


@pytest.mark.parametrize("name, documented", DOCUMENTED, ids=[name for name, _ in DOCUMENTED])
def test_examples_of_docstrings(name, documented):
    (example,) = FINDER.find(documented, name, globs=dict(NAMES))
    assert example.examples, f"{name} shows no example"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    words = []
    assert runner.run(example, out=words.append).failed == 0, "".join(words)


def test_the_example_of_the_readme(root):
    section = (root / "README.md").read_text().split("## From Python", 1)[1].split("\n## ", 1)[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names = {}
    exec(program, names)
    assert names["x"].grad.shape == names["x"].shape and names["y"].shape == (2, 64)
