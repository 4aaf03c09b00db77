"""Fixtures: the devices that tests run on, and the comparison with PyTorch that tests/parity.py has."""

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _has_gpu():
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.cpu), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Every device that there is."""
    return request.param


def pytest_collection_modifyitems(items):
    """Skips what needs a GPU where there is none."""
    if _has_gpu():
        return
    skip = pytest.mark.skip(reason="no GPU")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def parity():
    """tests/parity.py as a module: cases, float64 gradients of plain PyTorch, and error bounds."""
    spec = importlib.util.spec_from_file_location("parity", ROOT / "tests" / "parity.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def root():
    """The repository."""
    return ROOT
