"""What `import causeway` gives: every module by its name, and nothing that was not asked for."""

import ast
import subprocess
import sys
import typing

import pytest


def run(program):
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_submodules_are_there_without_an_import_of_their_own():
    pytest.importorskip("torch")
    program = (
        "import sys, causeway\n"
        "assert {'kernels', 'nn', 'parallel'} <= set(dir(causeway))\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "print(causeway.kernels.causal_conv1d_forward.__name__)\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "print(causeway.nn.CausalConv1d(4, 3).kernel_size)\n"
        "print(causeway.parallel.causal_conv1d_fn.__module__)\n"
        "assert causeway.nn is sys.modules['causeway.nn']\n"
    )
    assert run(program) == "causal_conv1d_forward\n(3,)\ncauseway.parallel\n"


def test_a_module_that_needs_pytorch_says_so():
    program = (
        "import sys\n"
        "sys.modules['torch'] = None                      # as if it were not installed\n"
        "import causeway, inspect\n"
        "try:\n"
        "    causeway.nn\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
        "assert not hasattr(causeway, 'parallel') and hasattr(causeway, 'kernels')\n"
        "assert 'gemm' in dict(inspect.getmembers(causeway))\n"
    )
    words = run(program)
    assert words.startswith("causeway.nn cannot be imported: ") and "torch" in words


def test_stubs_take_an_activation_out_of_a_configuration(root):
    """`config.hidden_act` is a str to a type checker, and no literal."""
    stub = ast.parse((root / "python" / "causeway" / "__init__.pyi").read_text())
    (kind,) = (
        node.value for node in stub.body if isinstance(node, ast.Assign) and node.targets[0].id == "_Activation"
    )
    allowed = eval(compile(ast.Expression(kind), "__init__.pyi", "eval"), vars(typing))
    assert set(typing.get_args(allowed)) == {str, type(None)}


def test_dir_has_what_is_public():
    program = (
        "import causeway\n"
        "assert set(dir(causeway)) == {*causeway.__all__, 'drop_in', 'kernels', 'nn', 'parallel'}\n"
        "for module in (causeway.kernels, causeway.nn, causeway.parallel):\n"
        "    assert dir(module) == sorted(module.__all__)\n"
    )
    pytest.importorskip("torch")
    run(program)


def test_the_docstring_of_kernels_has_their_signatures():
    program = (
        "import causeway, inspect, re\n"
        "text = re.sub(r'\\s+', ' ', causeway.kernels.__doc__)\n"
        "for name in causeway.kernels.__all__:\n"
        "    parameters = inspect.signature(getattr(causeway.kernels, name)).parameters.values()\n"
        "    words = ', '.join(p.name if p.default is p.empty else f'{p.name}={p.default}' for p in parameters)\n"
        "    assert f'{name}({words})' in text.replace('1e-6', '1e-06'), name\n"
    )
    run(program)


def test_a_name_that_is_nowhere():
    program = "import causeway\ntry:\n    causeway.nnn\nexcept AttributeError as error:\n    print(error)\n"
    assert run(program) == "module 'causeway' has no attribute 'nnn'\n"
