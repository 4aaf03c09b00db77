"""What the documentation shows: every example in a docstring, the README's, and the pages' from top to bottom."""

import doctest
import os
import re
import shutil
import subprocess
import sys

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
    ("GatedShortConv", causeway.nn.GatedShortConv),
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


def blocks(root, page):
    """The code of a page's blocks, each at the lines that it has there, so that an error names its line, by their kind."""
    text = (root / "docs" / page).read_text()
    found = {"": [], " program": []}
    for match in re.finditer(r"^```python(.*?)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        found[match[1]].append("\n" * text.count("\n", 0, match.start(2)) + match[2])
    return found


@pytest.mark.parametrize("page", ["python-guide.md", "python.md"])
def test_a_page_from_top_to_bottom(root, page, device, tmp_path):
    """In a process of its own, since a page may import and install."""
    programs = [program.replace('"cpu"', f'"{device}"') for program in blocks(root, page)[""]]
    assert any(device in program for program in programs)
    path = tmp_path / "page.py"
    path.write_text(
        "".join(f"exec(compile({program!r}, {page!r}, 'exec'))\n" for program in programs)
    )
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def test_the_program_of_the_guide_on_two_ranks(root, tmp_path):
    (program,) = blocks(root, "python-guide.md")[" program"]
    path = tmp_path / "program.py"
    path.write_text(program)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", path]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    if torch.cuda.device_count() < 2:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("name", ["train_tiny_mamba", "train_tiny_lfm2"])
def test_examples(root, name, device, tmp_path):
    """Both runs of an example see the same losses."""
    plot = tmp_path / "loss.svg"
    program = root / "python" / "examples" / f"{name}.py"
    command = [sys.executable, program, "--steps", "4", "--device", device, "--plot", plot]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert float(re.search(r"difference of the two losses: (\S+)", done.stdout)[1]) < 1e-4
    assert plot.read_text().startswith("<svg")


@pytest.mark.parametrize("name", ["train_tiny_mamba", "train_tiny_lfm2"])
def test_what_an_example_refuses(root, name, tmp_path):
    """Before it trains, as argparse has it."""
    (tmp_path / "empty").touch()
    for arguments, words in [
        (["--steps", "0"], "argument --steps: '0': expected an int, 1 or more"),
        (["--batch", "-1"], "argument --batch: '-1': expected an int, 1 or more"),
        (["--dim", "1.5"], "argument --dim: '1.5': expected an int, 1 or more"),
        (["--seqlen", "1000000000"], "--seqlen is 1000000000: expected "),
        (["--text", tmp_path / "empty"], f"--text is {tmp_path / 'empty'}, of 0 bytes: expected 3 bytes or more"),
        (["--text", tmp_path / "none"], f"--text is {tmp_path / 'none'}: No such file or directory"),
        (["--plot", tmp_path / "none" / "loss.svg"], "loss.svg: expected a file in a folder that exists"),
        (["--plot", tmp_path], f"--plot is {tmp_path}: expected a file in a folder that exists"),
        (["--device", "none"], "--device is none: "),
    ][:: 1 if name == "train_tiny_mamba" else 4]:
        command = [sys.executable, root / "python" / "examples" / f"{name}.py", "--device", "cpu", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2 and words in done.stderr and not done.stdout, done.stderr[-4000:]


def test_an_example_outside_of_the_project_asks_for_a_text(root, tmp_path):
    """Wherever it lies: also right below a root, as in /tmp."""
    program = shutil.copy(root / "python" / "examples" / "train_tiny_mamba.py", tmp_path)
    command = [sys.executable, program, "--device", "cpu", "--steps", "1", "--plot", tmp_path / "loss.svg"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == (
        "error: the text to train on is missing: it is the project's documentation, and "
        f"{tmp_path} is not in the project; name a file with --text\n"
    )
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 4)
    assert subprocess.run([*command, "--text", text], capture_output=True).returncode == 0
