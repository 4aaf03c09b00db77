"""The drop-in as a distribution and at run time: what is in it, and how it lives beside the original."""

import importlib
import itertools
import importlib.util
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import causeway  # noqa: E402

NAMES = {
    "causal_conv1d",
    "causal_conv1d.causal_conv1d_interface",
    "causal_conv1d.causal_conv1d_varlen",
    "causal_conv1d.cpp_functions",
    "causal_conv1d_cuda",
}


def present():
    """The modules of causal_conv1d that are imported, ours or others."""
    return {name: module for name, module in sys.modules.items() if name.startswith("causal_conv1d")}


@pytest.fixture(autouse=True)
def nothing_left():
    """No module of causal_conv1d before and after a test."""
    before = present()
    yield
    assert present() == before


def test_install_and_remove():
    assert not present() and importlib.util.find_spec("causal_conv1d") is None
    installed = causeway.install_causal_conv1d()
    assert set(present()) == NAMES
    from causal_conv1d.causal_conv1d_interface import causal_conv1d_fn

    installed.remove()
    installed.remove()
    assert not present() and importlib.util.find_spec("causal_conv1d") is None
    # Who has imported a function keeps it.
    assert causal_conv1d_fn(torch.ones(1, 1, 2), torch.ones(1, 2)).tolist() == [[[1.0, 2.0]]]


@pytest.fixture
def original(tmp_path, monkeypatch):
    """A package that looks like the original, on the path."""
    package = tmp_path / "causal_conv1d"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '1.5.0'\n")
    (package / "causal_conv1d_interface.py").write_text("causal_conv1d_fn = 'the original'\n")
    (tmp_path / "causal_conv1d-1.5.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: causal-conv1d\nVersion: 1.5.0\n"
    (tmp_path / "causal_conv1d-1.5.0.dist-info" / "METADATA").write_text(metadata)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in present():
        del sys.modules[name]


@pytest.mark.parametrize("is_imported", [False, True])
def test_beside_the_original(original, is_imported):
    if is_imported:
        importlib.import_module("causal_conv1d.causal_conv1d_interface")
    with causeway.install_causal_conv1d() as installed:
        ours = importlib.import_module("causal_conv1d.causal_conv1d_interface")
        assert sys.modules["causal_conv1d"].__version__ == "1.7.0+causeway" and callable(ours.causal_conv1d_fn)
        with causeway.install_causal_conv1d():
            pass
        assert sys.modules["causal_conv1d.causal_conv1d_interface"] is ours
    assert not is_imported or set(present()) == {"causal_conv1d", "causal_conv1d.causal_conv1d_interface"}
    again = importlib.import_module("causal_conv1d.causal_conv1d_interface")
    assert sys.modules["causal_conv1d"].__version__ == "1.5.0" and again.causal_conv1d_fn == "the original"
    installed.remove()
    assert sys.modules["causal_conv1d.causal_conv1d_interface"] is again


def test_operators_of_the_original_stay_its_own():
    """Their names are taken where it has been imported before."""
    program = (
        "import torch, causeway\n"
        "@torch.library.custom_op('DaoAILab::_causal_conv1d_update_cpp', mutates_args=())\n"
        "def update(x: torch.Tensor) -> torch.Tensor:\n"
        "    return x + 1\n"
        "causeway.install_causal_conv1d()\n"
        "from causal_conv1d.cpp_functions import _causal_conv1d_update_cpp, causal_conv1d_update_function\n"
        "x, state, weight = torch.ones(1, 2), torch.zeros(1, 2, 3), torch.ones(2, 4)\n"
        "assert torch.ops.DaoAILab._causal_conv1d_update_cpp(x).tolist() == [[2, 2]]\n"
        "assert causal_conv1d_update_function(x, state, weight, None, False, None, None).tolist() == [[1, 1]]\n"
        "_causal_conv1d_update_cpp(x, state, weight, None, out := torch.empty_like(x), False, None, None)\n"
        "assert out.tolist() == [[2, 2]] and state.tolist() == [[[0, 1, 1]] * 2]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_module_that_came_later_stays():
    installed = causeway.install_causal_conv1d()
    later = sys.modules["causal_conv1d_cuda"] = type(sys)("causal_conv1d_cuda")
    installed.remove()
    assert present() == {"causal_conv1d_cuda": later}
    del sys.modules["causal_conv1d_cuda"]


@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_several_are_removed_in_any_order(order):
    installed = [causeway.install_causal_conv1d() for _ in range(3)]
    names = set(present())
    for at in order[:2]:
        installed[at].remove()
        assert set(present()) == names
    installed[order[2]].remove()
    assert not present()
    # What was removed has nothing to put back.
    installed[order[0]].remove()
    assert not present()


def test_the_distribution_tells_of_an_original_that_it_hides(root, original, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "shim"))
    with pytest.warns(UserWarning, match=r"causal-conv1d 1\.5\.0 is installed too, in .*install_causal_conv1d"):
        import causal_conv1d
    assert causal_conv1d.__version__ == "1.7.0+causeway"


def test_the_distribution_has_every_module(root, tmp_path):
    import zipfile

    pytest.importorskip("hatchling", reason="hatchling, which builds the drop-in, is not installed")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", tmp_path, root / "shim"], check=True)
    (wheel,) = tmp_path.glob("causal_conv1d-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    modules = ["__init__", "causal_conv1d_interface", "causal_conv1d_varlen", "cpp_functions"]
    expected = ["causal_conv1d_cuda.py", *(f"causal_conv1d/{module}.py" for module in modules)]
    assert set(expected) <= set(names)


@pytest.mark.parametrize("version, refused", [("1.5.0", True), ("1.7.0+causeway", False)])
def test_it_does_not_replace_the_original(root, tmp_path, monkeypatch, version, refused):
    import contextlib
    import importlib.util
    import sysconfig

    pytest.importorskip("hatchling", reason="hatchling, which builds the drop-in, is not installed")
    installed = tmp_path / f"causal_conv1d-{version}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: causal-conv1d\nVersion: {version}\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    spec = importlib.util.spec_from_file_location("refuse", root / "shim" / "refuse.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hook = module.RefuseToReplace(str(root / "shim"), {}, None, None, str(tmp_path), "wheel")
    refusal = pytest.raises(
        SystemExit, match="causal-conv1d 1.5.0 is installed in .*pip uninstall causal-conv1d"
    )
    with refusal if refused else contextlib.nullcontext():
        hook.initialize("standard", {})
