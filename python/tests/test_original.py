"""causal_conv1d's own tests against the drop-in, from the source distribution on PyPI.

On a CPU with the device replaced and a sample of 1,500; on a GPU all of them, by a worker for each processor where there is
pytest-xdist. CAUSEWAY_ORIGINAL names a file that has been downloaded before, for a machine without a network.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tarfile

import pytest

torch = pytest.importorskip("torch")

NAME, VERSION = "causal-conv1d", "1.7.0"
SHA256 = "3202758494eaa7b597ce1c282dfa188889506bfcb92cad3c407d26736bfcd32b"

# Of einops, the tests use this function, and it for permutations alone.
EINOPS = '''
def rearrange(tensor, pattern):
    before, after = (side.split() for side in pattern.split("->"))
    return tensor.permute([before.index(name) for name in after])
'''


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The original's file of tests."""
    directory = tmp_path_factory.mktemp("original")
    archive = os.environ.get("CAUSEWAY_ORIGINAL")
    if not archive:
        (directory / "requirements").write_text(f"{NAME}=={VERSION} --hash=sha256:{SHA256}\n")
        # pip asks the package for its metadata, and it would look for a compiler of CUDA's.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        command += ["--no-build-isolation", "--retries", "1", "--timeout", "15", "--require-hashes"]
        command += ["--dest", directory, "--requirement", directory / "requirements"]
        environment = dict(os.environ, CAUSAL_CONV1D_SKIP_CUDA_BUILD="TRUE")
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0 and "HASH" not in done.stderr.upper():
            pytest.skip(f"{NAME} {VERSION} cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}")
        assert done.returncode == 0, done.stderr
        (archive,) = directory.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        return file.extractfile(f"causal_conv1d-{VERSION}/tests/test_causal_conv1d.py").read().decode()


def test_every_test_of_the_original_passes(root, source, device, tmp_path):
    assert source.count('device = "cuda"') > 5
    program = tmp_path / "test_original.py"
    program.write_text(source.replace('"cuda"', f'"{device}"'))
    # The program runs elsewhere, where a relative entry would name another folder.
    inherited = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path = [str(root / "shim"), *inherited, str(pathlib.Path(__file__).parent)]
    if importlib.util.find_spec("einops") is None:
        (tmp_path / "stand_in").mkdir()
        (tmp_path / "stand_in" / "einops.py").write_text(EINOPS)
        path.append(str(tmp_path / "stand_in"))
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "--tb=short", "-c", os.devnull]
    command += ["-p", "original_sample", "--durations=5"]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path))
    if device == "cpu":
        environment["CAUSEWAY_ORIGINAL_SAMPLE"] = "1500"
    elif importlib.util.find_spec("xdist"):
        # Each holds a few gigabytes of the GPU.
        command += ["-n", str(min(16, len(os.sched_getaffinity(0)))), "--dist", "worksteal"]
        environment["OMP_NUM_THREADS"] = "1"
    # Shown as it comes, for a run that is cut off.
    output = []
    with subprocess.Popen(
        [*command, program],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            output.append(line)
    assert process.returncode == 0, "".join(output)[-6000:]
    passed = int(re.search(r"(\d+) passed", output[-1])[1])
    assert passed == 1500 if device == "cpu" else passed > 9000, output[-1]
