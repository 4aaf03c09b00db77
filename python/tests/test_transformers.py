"""Models of `transformers` with the drop-in against the same models with their own PyTorch code."""

import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="transformers is not installed")

PROGRAM = pathlib.Path(__file__).with_name("transformers_model.py")


def run(directory, shim, *options):
    """What the models compute, with or without the drop-in on the path, into a directory."""
    directory.mkdir()
    path = [str(shim)] if shim else []
    path += [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path), HF_HUB_OFFLINE="1")
    done = subprocess.run(
        [sys.executable, PROGRAM, directory, *options], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return directory


@pytest.fixture(scope="module")
def runs(root, tmp_path_factory):
    """The directories of a run without and two runs with the drop-in: on the path, and installed at run time."""
    directory = tmp_path_factory.mktemp("transformers")
    return (
        run(directory / "plain", None),
        run(directory / "shim", root / "shim"),
        run(directory / "installed", None, "install"),
    )


@pytest.mark.parametrize("kind", ["mamba", "falcon_mamba", "mamba2", "lfm2", "qwen3_next"])
def test_logits_gradients_and_tokens(kind, runs):
    expected, found, installed = (torch.load(directory / f"{kind}.pt") for directory in runs)
    assert installed.keys() == found.keys() and all(torch.equal(installed[name], found[name]) for name in found)
    assert found.pop("used") and not expected.pop("used")
    assert torch.equal(found.pop("tokens"), expected.pop("tokens"))
    assert found.keys() == expected.keys() and any("conv" in name for name in found)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=2e-5, rtol=1e-3, msg=lambda m: f"{name}: {m}")
