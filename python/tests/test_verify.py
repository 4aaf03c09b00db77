"""`causeway.verify`: the command's verification from a program, and the object that it gives."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import causeway
import pytest

SUITE = """\
name = "two"
about = "A call that is right, and one with a fault in it."

[[conv1d]]
name = "right"
shape = [1, 2, 3]
width = 4
layout = "channel-first"
activation = "none"
dtype = "f32"

[[conv1d]]
name = "wrong"
shape = [1, 2, 3]
width = 4
layout = "channel-first"
activation = "none"
dtype = "f32"
fault = { output = "y", coordinate = [0, 1, 2], add = 1.0 }
"""


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(SUITE)
    return path


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.cpu), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


def test_random_calls(device):
    report = causeway.verify(60, seed=3, device=device)
    assert report.passed and report.count == 60 and report.failures == [] and report.seed == 3
    assert report.device.startswith(device) and report.elements > 0 and report.seconds > 0
    assert "conv1d" in report.counts and sum(report.counts.values()) == 60
    assert all(part <= 1 for part in report.worst.values()) and any(report.worst.values())
    assert report.evidence and report.non_claims
    assert repr(report).startswith("<causeway.verify: all right: 60 random calls (seed 3) on ")


@pytest.fixture
def simulator():
    if not any(shutil.which(f"clang++{version}") for version in ("", *(f"-{n}" for n in range(16, 22)))):
        pytest.skip("the simulator compiles kernels with clang++")


def test_a_simulated_gpu(simulator):
    report = causeway.verify(3, op="conv1d-update", elements=500, device="sim:32")
    assert report.passed and report.count == 3 and report.device == "sim:32"
    assert any(sentence.startswith("No GPU ran") for sentence in report.non_claims)


def test_a_wrong_value_of_the_environment_is_told(simulator):
    program = "import causeway; causeway.verify(3, op='conv1d-update', elements=500, device='sim:32')"
    environment = {name: value for name, value in os.environ.items() if name != "CAUSEWAY_SIM_DIR"}
    environment["CAUSEWAY_CACHE"] = "maybe"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert 'CAUSEWAY_CACHE is "maybe": expected on, readonly or off; taken as on' in done.stderr


def test_a_simulated_gpu_without_a_compiler(monkeypatch):
    monkeypatch.setenv("CAUSEWAY_SIM_CXX", "/nonexistent/clang++")
    with pytest.raises(RuntimeError, match="CAUSEWAY_SIM_CXX is /nonexistent/clang"):
        causeway.verify(3, device="sim:32")


def test_the_calls_are_those_of_the_command():
    """The same seed draws the same ones."""
    options = ["--random", "40", "--seed", "5", "--op", "conv1d-update", "--device", "cpu", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "causeway", "verify", *options], capture_output=True, text=True, check=True
    )
    expected = json.loads(done.stdout)["random"]
    assert causeway.verify(40, seed=5, op="conv1d-update", device="cpu").facts["random"] == expected


def test_a_suite(device):
    seen = []
    report = causeway.verify(suite="conv1d-last", case="small", device=device, progress=lambda *now: seen.append(now))
    assert report.passed and report.seed is None and report.counts == {"conv1d": report.count}
    assert report.count == len(report.facts["cases"]) == 3
    assert all("small" in case["name"] and case["suite"] == "conv1d-last" for case in report.facts["cases"])
    assert {"y", "dx", "dweight", "dbias"} <= set(report.worst)
    assert all(asked == 3 and 0 <= done <= 3 and wrong == 0 for done, asked, wrong in seen)


def test_a_wrong_result(suite, tmp_path):
    report = causeway.verify(suite=[suite], device="cpu", repeat=2)
    assert not report.passed and report.count == 2
    (failure,) = report.failures
    assert failure.name.startswith("wrong") and "y[0, 1, 2]" in failure.complaints[0]
    assert "1 WRONG of 2 cases" in repr(report) and str(failure) in str(report)
    assert report.worst["y"] > 1
    page = report._repr_html_()
    assert "1 WRONG of 2 cases" in page and "outside their bound" in page and "what this does not show" in page
    report.save(tmp_path / "saved")
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {"run.json", "report.md", "report.html"}
    check = [sys.executable, "-m", "causeway", "report", "--check", tmp_path / "saved" / "run.json"]
    assert "sound" in subprocess.run(check, capture_output=True, text=True, check=True).stdout


def test_what_a_notebook_shows_is_escaped(suite):
    suite.write_text(SUITE.replace('"wrong"', '"<script>wrong"'))
    page = causeway.verify(suite=suite, device="cpu")._repr_html_()
    assert "&lt;script&gt;wrong" in page and "<script>" not in page


@pytest.mark.parametrize(
    "arguments, words",
    [
        (dict(suite="nothing"), 'suite is "nothing": expected conv1d-first'),
        (dict(suite="conv1d-last", case="zzz"), 'no case of conv1d-last has "zzz" in its name'),
        (dict(case="small"), "case is for a suite"),
        (dict(repeat=3), "repeat is for a suite"),
        (dict(random=10, suite="full"), "random is 10, which is for random calls: leave out random, or suite"),
        (dict(suite="full", seed=3), "seed is 3, which is for random calls: leave out seed, or suite"),
        (dict(suite="full", seconds=0), "seconds is 0, which is for random calls"),
        (dict(suite="full", op="gemm"), "op is 'gemm', which is for random calls"),
        (dict(suite="full", elements=9), "elements is 9, which is for random calls"),
        (dict(suite="conv1d-last", repeat=0), "repeat is 0: expected an int, 1 to 4294967295"),
        (dict(random=-1), "random is -1: expected an int, 1 to 4294967295"),
        (dict(random=0), "random is 0: expected an int, 1 to 4294967295, the number of random calls"),
        (dict(random=1.5), "random is 1.5: expected an int, 1 to 4294967295, the number of random calls"),
        (dict(random=True), "random is True: expected an int, 1 to 4294967295, the number of random calls"),
        (dict(suite=0), "suite is 0: expected a name or several"),
        (dict(suite=[]), "suite is []: expected a name or several"),
        (dict(device=0), 'device is "0": expected best, cpu'),
        (dict(device=""), 'device is "": expected best, cpu'),
        (
            dict(random="conv1d-last"),
            "random is 'conv1d-last': expected an int, 1 to 4294967295, the number of random calls; for a suite, pass suite='conv1d-last'",
        ),
        (dict(random="cuda"), "; for a suite, pass suite='cuda'; for a device, pass device='cuda'"),
        (dict(op="conv2d"), 'op is "conv2d": expected conv1d, conv1d-update'),
        (dict(device="tpu"), 'device is "tpu": expected best, cpu'),
        (dict(device="tpu"), "; sim:32 and sim:64 are simulated GPUs"),
        (dict(device="sim:33"), 'device is "sim:33": expected sim:32, sim:64'),
        (dict(threads=4097), "threads is 4097: expected an int, 0 to 4096"),
        (dict(seconds=-1), "seconds is -1: expected a number, 0 or more"),
        (dict(elements=0), "elements is 0: expected an int, 1 to 2147483648"),
        (dict(suite=["conv1d-last", 3]), "suite is ['conv1d-last', 3]: expected a name or several"),
        (dict(op=[]), "op is []: expected a name or several"),
        (dict(op=3), "op is 3: expected a name or several"),
        (dict(seconds="1"), "seconds is '1': expected a number"),
        (dict(seconds=float("inf")), "seconds is inf: expected a number, 0 or more, up to 1e+09; leave it out for no limit"),
        (dict(random=1 << 70), f"random is {1 << 70}: expected an int, 1 to 4294967295"),
        (dict(elements=1 << 70), f"elements is {1 << 70}: expected an int, 1 to 2147483648"),
        (dict(suite="small", repeat=1 << 40), f"repeat is {1 << 40}: expected an int, 1 to 4294967295"),
        (dict(suite="small", case=3), "case is 3: expected a str"),
        (dict(progress=3), "progress is 3: expected True, False or a function of three numbers"),
        (dict(seed=1 << 64), "expected an int, 0 to 18446744073709551615"),
        (dict(threads=100_000), "threads is 100000: expected an int, 0 to 4096"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_arguments(arguments, words):
    with pytest.raises((ValueError, TypeError)) as raised:
        causeway.verify(**arguments)
    assert words in str(raised.value)


@pytest.mark.parametrize("name", ["random", "seed", "elements", "threads", "seconds"])
def test_what_is_no_number(name):
    for value in (1.5, True, "7") if name != "seconds" else ("7", [7]):
        with pytest.raises(TypeError, match=f"^{name} is {re.escape(repr(value))}: expected a"):
            causeway.verify(**{name: value})


def test_where_a_report_is_saved():
    with pytest.raises(TypeError, match="^directory is 5: expected a str or a path$"):
        causeway.verify(5, device="cpu").save(5)


def test_a_limit_of_time():
    start = time.monotonic()
    report = causeway.verify(1_000_000, seconds=0.2, device="cpu")
    assert report.passed and 0 < report.count < 1_000_000 and time.monotonic() - start < 60


def test_no_calls_at_all():
    report = causeway.verify(5, seconds=0, device="cpu")
    assert not report.passed and report.count == 0 and report.worst == {}
    assert "nothing was checked: 0 random calls" in report._repr_html_() and "all right" not in str(report)


def test_an_error_of_progress_ends_the_run():
    def fail(done, asked, wrong):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        causeway.verify(1_000_000, device="cpu", progress=fail)


def test_other_threads_run_meanwhile():
    done, counted = threading.Event(), []

    def count():
        while not done.is_set():
            counted.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        causeway.verify(10_000, seconds=0.5, device="cpu")
    finally:
        done.set()
        thread.join()
    assert len(counted) > 20


def test_ctrl_c_ends_it():
    program = (
        "import causeway, signal\n"
        # A shell has its background jobs ignore it, and so what they start.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n"
        "    causeway.verify(10_000_000, device='cpu', progress=lambda *now: print(*now, flush=True))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert output.splitlines()[-1] == "interrupted" and process.returncode == 0


def test_no_library_is_imported():
    program = (
        "import causeway, sys\n"
        "assert causeway.verify(3, device='cpu').passed\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "CAUSEWAY_DEVICE"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_a_device_of_the_environment(monkeypatch):
    monkeypatch.setenv("CAUSEWAY_DEVICE", "cpu:portable")
    assert causeway.verify(3).device == "cpu (portable)"
    assert causeway.verify(3, device="cpu").device != "cpu (portable)"
