"""Models of `transformers` with Causeway's convolution against the same models with their own PyTorch code."""

import os
import pathlib
import runpy
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

PROGRAM = pathlib.Path(__file__).with_name("transformers_model.py")
CONFIGS = runpy.run_path(str(PROGRAM))["CONFIGS"]
# Those that compile fastest, one of each way to our functions. CAUSEWAY_TEST_COMPILED=BACKEND compiles all, for example with
# inductor: with aot_eager they take six minutes.
COMPILED = ("mamba2", "lfm2", "lfm3")
BACKEND = os.environ.get("CAUSEWAY_TEST_COMPILED")


class Run:
    """Processes that compute with the convolution of `way`, each for some of the kinds, and the directory of their results."""

    def __init__(self, directory, way, shim, kinds, *options):
        directory.mkdir()
        path = [str(shim)] if way == "path" else []
        path += [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path), HF_HUB_OFFLINE="1")
        self.directory = directory
        self.log = directory.with_suffix(".log")
        # Three runs at a time have one thread for each process.
        count = max(1, min(len(kinds), len(os.sched_getaffinity(0)) // 3))
        with self.log.open("w") as log:
            self.processes = [
                subprocess.Popen(
                    [sys.executable, PROGRAM, directory, way, "--kinds", ",".join(kinds[at::count]), *options],
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
                for at in range(count)
            ]

    def wait(self):
        """The directory, once everything is in it."""
        assert not any([process.wait() for process in self.processes]), self.log.read_text()[-4000:]
        return self.directory


@pytest.fixture(
    scope="module", params=[pytest.param("cpu", marks=pytest.mark.cpu), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def runs(root, tmp_path_factory, request):
    """The directories of each way's results. What PyTorch's own code finds decides which models the others take."""
    directory = tmp_path_factory.mktemp("transformers")
    device = ["--device", request.param]
    kinds = list(CONFIGS)
    to_compile = kinds if BACKEND is not None or request.param == "cuda" else list(COMPILED)
    compiled = ["--modes", "compiled", "--backend", BACKEND or "aot_eager"]

    def start(way, *seeds):
        """Compiling in a process of its own, beside the rest."""
        name = lambda part: directory / f"{way}-{part}"  # noqa: E731
        run = [Run(name("eager"), way, root / "shim", kinds, *device, *seeds)]
        if way != "path":
            run.append(Run(name("compiled"), way, root / "shim", to_compile, *device, *compiled))
        return run

    wait = lambda runs: [run.wait() for run in runs]  # noqa: E731
    plain = wait(start("plain"))
    seeds = "--seeds", plain[0]
    installed, path = start("install", *seeds), start("path", *seeds)
    return {"plain": plain, "install": wait(installed), "path": wait(path)}


def load(runs, way, kind, part=0):
    """A mode's results by name; without those of LFM3 and others that this version of transformers lacks."""
    if not hasattr(transformers, CONFIGS[kind][0]):
        pytest.skip(f"this transformers has no {CONFIGS[kind][0]}")
    return torch.load(runs[way][part] / f"{kind}.pt")


def pair(runs, way, kind, mode, part=0):
    """What a mode gives with plain PyTorch and with Causeway; skipped where transformers' own code fails."""
    expected, found = (load(runs, of, kind, part)[mode] for of in ("plain", way))
    if "failed" in expected:
        pytest.skip(f"{kind} fails in plain PyTorch: {expected['failed']}")
    assert "failed" not in found, found["failed"]
    return expected, found


@pytest.mark.parametrize("way", ["install", "path"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_logits_gradients_and_tokens(kind, way, runs):
    expected, found = pair(runs, way, kind, "eager")
    assert all(found["calls"].values()) and not expected["calls"]
    assert torch.equal(found["tokens"], expected["tokens"])
    close(found["logits"], expected["logits"], "logits")
    assert found["gradients"].keys() == expected["gradients"].keys()
    assert any("conv" in name for name in found["gradients"])
    for name, gradient in expected["gradients"].items():
        close(found["gradients"][name], gradient, name)


def close(found, expected, name):
    """Within what float32 rounds, of the largest element."""
    error = (found - expected).abs().max() / expected.abs().max().clamp_min(1e-20)
    assert error < 2e-4, f"{name} differs by {error:.1e}"


@pytest.mark.parametrize("kind", CONFIGS)
def test_keywords_for_other_parts_of_a_model(kind, runs):
    """transformers hands each keyword to every function that has it."""
    _, found = pair(runs, "install", kind, "eager")
    assert torch.equal(found["with_residual"], found["without_residual"])


@pytest.mark.parametrize("kind", CONFIGS)
def test_tokens_under_autocast(kind, runs):
    expected, found = pair(runs, "install", kind, "autocast")
    assert all(found["calls"].values())
    assert torch.equal(found["tokens"], expected["tokens"])


@pytest.fixture(scope="module")
def takes_compiling_for_exporting():
    """Before PyTorch 2.14, `torch.compiler.is_exporting()` is true under torch.compile, where transformers then takes its own
    convolution, whatever package is there. LFM3's functions are ours all the same."""
    return torch.compile(lambda x: x + torch.compiler.is_exporting(), backend="eager")(torch.zeros(())).item() == 1


@pytest.mark.parametrize("kind", CONFIGS)
def test_tokens_of_a_compiled_model(kind, runs, takes_compiling_for_exporting):
    if not (runs["install"][1] / f"{kind}.pt").exists() and kind not in COMPILED:
        pytest.skip("takes long: CAUSEWAY_TEST_COMPILED=aot_eager compiles every model")
    expected, found = pair(runs, "install", kind, "compiled", part=1)
    operators = ["causeway.causal_conv1d_forward.default", "causeway.causal_conv1d_update.default"]
    if takes_compiling_for_exporting and kind != "lfm3":
        operators = []
    assert found["operators"] == operators and not expected["operators"]
    assert torch.equal(found["tokens"], expected["tokens"])
    close(found["logits"], expected["logits"], "logits")
