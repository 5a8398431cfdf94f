"""A consumer under `mypy --strict` sees every public name of refsim with its type, and no name that is not there."""

import ast
import importlib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import refsim

CONSUMER = Path(__file__).with_name("strict_consumer.py")
MODULES = (
    "refsim",
    "refsim.causes",
    "refsim.compare",
    "refsim.conversions",
    "refsim.device",
    "refsim.files",
    "refsim.formats",
    "refsim.kernels",
    "refsim.layouts",
    "refsim.numerics",
    "refsim.oracles",
    "refsim.oracles.fp8_quantize",
    "refsim.ptx",
    "refsim.scaling",
    "refsim.testing",
    "refsim.testing.adapters",
    "refsim.testing.kinds",
    "refsim.testing.laws",
    "refsim.testing.matrices",
    "refsim.testing.recipes",
    "refsim.testing.strategies",
)


def strict(file: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """What mypy says of a file alone; refsim is found where this process found it."""
    found = Path(refsim.__file__).parent.parent
    path = {} if found.name == "site-packages" else {"MYPYPATH": str(found)}
    command = ("--strict", "--follow-imports=silent", "--ignore-missing-imports", "--config-file=", "--no-color-output")
    return subprocess.run(
        [sys.executable, "-m", "mypy", *command, f"--cache-dir={cache}", str(file)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **path},
        cwd=file.parent,
    )


@pytest.mark.ci("mypy reads all of refsim anew; that the consumer has every public name is asked in every run")
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed here: it comes with refsim[dev]")
def test_strict_mypy_knows_every_public_function_and_no_misspelt_one(tmp_path: Path) -> None:
    right = strict(CONSUMER, tmp_path / "cache")
    assert right.returncode == 0, right.stdout + right.stderr
    wrong = tmp_path / "misspelt.py"
    wrong.write_text(
        "import refsim\nfrom refsim import layouts, numerics, testing\n"
        "refsim.decod\nlayouts.fragmnt\nnumerics.mmaa\ntesting.kernel_name\nrefsim.files.Any\n"
    )
    lines = strict(wrong, tmp_path / "cache").stdout.splitlines()
    assert [line.split(":")[1] for line in lines if "attr-defined" in line] == ["3", "4", "5", "6", "7"], lines


def test_the_consumer_uses_every_public_name() -> None:
    used = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(ast.parse(CONSUMER.read_text()))
        if isinstance(node, (ast.Attribute, ast.Name))
    }
    public = {name for module in MODULES for name in importlib.import_module(module).__all__}
    assert sorted(public - used) == []


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_exports_is_spelt_out_and_can_be_loaded(name: str) -> None:
    """A type checker reads `__all__`, or names imported as themselves: a computed list exports nothing to it."""
    module = importlib.import_module(name)
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    lists = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    reexported = [each.name for node in imports for each in node.names if each.name == each.asname]
    spelt = lists[0] if lists else sorted(["__version__"] * (name == "refsim") + reexported)
    assert spelt == module.__all__
    assert all(getattr(module, each) is not None for each in spelt)
    assert "__getattr__" not in vars(module) or dir(module) == sorted(spelt)
