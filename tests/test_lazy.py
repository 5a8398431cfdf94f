"""Names that a package has not: the error says where they are, without importing anything."""

import copy
import math
import pickle
import subprocess
import sys
import zipfile
from importlib import import_module, reload
from importlib.abc import Loader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import refsim
from refsim import numerics, testing
from refsim.errors import Kind, RefsimError
from refsim.lazy import _ELSEWHERE


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mma", "it is refsim.numerics.mma"),
        ("layout", "refsim.layouts is meant"),
        ("quantise", "refsim.quantize is meant"),
        ("dequantise", "it is refsim.scaling.dequantize"),
        ("Kernel", "it is refsim.testing.Kernel"),
        ("decod", "nearest: refsim.decode"),
    ],
)
def test_a_missing_name_says_where_it_is(name, said):
    with pytest.raises(AttributeError) as caught:
        getattr(refsim, name)
    assert f"module 'refsim' has no attribute '{name}': {said}" in str(caught.value)
    assert caught.value.name == name
    assert not hasattr(refsim, name)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("from refsim import Kernel", "cannot import name 'Kernel' from 'refsim': it is refsim.testing.Kernel"),
        ("from refsim.testing import Kernl", "nearest: refsim.testing.Kernel"),
    ],
)
def test_an_import_of_a_missing_name_says_where_it_is(statement, said):
    with pytest.raises(ImportError, match=said):
        exec(statement)
    exec("from refsim import errors, lazy, numerics")


@pytest.mark.parametrize(
    ("package", "name", "near"),
    [
        (numerics, "mmaa", "mma"),
        (numerics, "mmas", "refsim.numerics.mma is meant"),
        (testing, "kernel", "refsim.testing.Kernel"),
    ],
)
def test_a_package_names_its_own_nearest(package, name, near):
    with pytest.raises(AttributeError, match=near):
        getattr(package, name)


def test_an_error_of_another_process_arrives():
    """A worker's error that does not unpickle ends its whole pool."""
    with pytest.raises(AttributeError) as caught:
        getattr(refsim, "mma")  # noqa: B009
    error = RefsimError("bad-tile", what="n is 3", help="give 4", kind=Kind.UNREADABLE, place=("k.cu", 8))
    for each in (caught.value, error):
        for found in (pickle.loads(pickle.dumps(each)), copy.copy(each)):
            assert (type(found), str(found), vars(found)) == (type(each), str(each), vars(each))
    assert pickle.loads(pickle.dumps(caught.value)).missing == "mma"


def test_every_name_that_is_elsewhere_is_there():
    for module, names in _ELSEWHERE.items():
        assert all(hasattr(import_module(module), name) for name in names.split()), module


@pytest.mark.parametrize("package", ["refsim", "refsim.layouts", "refsim.testing", "refsim.causes"])
def test_a_star_takes_every_public_name_and_no_other(package):
    taken: dict[str, object] = {}
    exec(f"from {package} import *", taken)
    assert sorted(taken.keys() - {"__builtins__"}) == import_module(package).__all__ == dir(import_module(package))


def _printed(code: str, *options: str, path: Path | None = None) -> str:
    """Return what a new interpreter prints; `path` goes before all folders of imports."""
    head = f"import sys; sys.path.insert(0, {str(path)!r}); " if path else ""
    return subprocess.run(
        [sys.executable, *options, "-c", head + code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_names_load_from_a_zip_file(tmp_path):
    root = Path(str(refsim.__file__)).parent
    with zipfile.ZipFile(tmp_path / "refsim.zip", "w") as archive:
        for path in root.rglob("*.py"):
            archive.write(path, path.relative_to(root.parent))
    code = "import refsim, refsim.numerics; refsim.numerics.mma; print(refsim.__file__, refsim.E4M3, hasattr(refsim, 'nope'))"
    found = _printed(code, path=tmp_path / "refsim.zip")
    assert found == f"{tmp_path / 'refsim.zip' / 'refsim' / '__init__.py'} e4m3 False"


def test_a_package_removed_from_the_modules_still_knows_its_names():
    code = (
        "import sys, refsim; m = refsim; del sys.modules['refsim']; print(hasattr(m, 'nope'), m.E4M3, len(dir(m)) > 30)"
    )
    assert _printed(code) == "False e4m3 True"


def test_names_load_under_optimization():
    code = "import refsim; print(__debug__, refsim.E4M3, hasattr(refsim, 'nope'), refsim.compare.__name__)"
    assert _printed(code, "-OO") == "False e4m3 False refsim.compare"


def test_names_load_in_many_threads_at_once():
    code = """
import refsim, sys, threading
sys.setswitchinterval(1e-6)
gate, found = threading.Barrier(8), []
def load():
    gate.wait()
    found.append([getattr(refsim, name) for name in refsim.__all__])
threads = [threading.Thread(target=load) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(found), all(each is other for row in found for each, other in zip(row, found[0], strict=True)))
"""
    assert _printed(code) == "8 True"


def test_a_reloaded_package_reads_its_source_again(tmp_path, monkeypatch):
    source = (
        "from typing import TYPE_CHECKING\nfrom refsim.lazy import exports\n"
        "if TYPE_CHECKING:\n    {}\nelse:\n    __getattr__, __dir__ = exports(__name__)\n"
    )
    (tmp_path / "lazy_example").mkdir()
    file = tmp_path / "lazy_example" / "__init__.py"
    file.write_text(source.format("from math import pi as pi"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lazy_example", raising=False)
    package = import_module("lazy_example")
    assert (package.__all__, hasattr(package, "tau")) == (["pi"], False)
    file.write_text(source.format("from math import pi as pi; from math import tau as tau"))
    assert reload(package).__all__ == ["pi", "tau"]


def test_a_loader_without_source_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader of pytest, which rewrites assertions of an installed plugin, has no get_source."""
    lines = "from typing import TYPE_CHECKING", "from refsim.lazy import exports", "if TYPE_CHECKING:"
    own = "    from math import pi as pi", "else:", "    __getattr__, __dir__ = exports(__name__)"
    text = "\n".join((*lines, *own))
    (tmp_path / "rewritten.py").write_text(text)

    class Rewriting(Loader):
        def create_module(self, spec):
            return None

        def exec_module(self, module):
            exec(compile(text, str(tmp_path / "rewritten.py"), "exec"), module.__dict__)

    spec = spec_from_file_location("rewritten", tmp_path / "rewritten.py", loader=Rewriting())
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rewritten", module)
    spec.loader.exec_module(module)
    assert module.pi == math.pi
    assert dir(module) == ["pi"]
