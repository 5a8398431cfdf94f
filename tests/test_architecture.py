"""No module stands in an import circle: imports for type checkers and imports inside functions count like all others."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import refsim

ROOT = Path(refsim.__file__).parent.parent
PACKAGES = (
    "refsim.layouts",
    "refsim.numerics",
    "refsim.render",
    "refsim.conversions",
    "refsim.mufu",
    "refsim.files",
    "refsim.scaling",
    "refsim.oracles",
    "refsim.compare",
    "refsim.causes",
    "refsim.computations",
    "refsim.device",
    "refsim.testing",
    "refsim.silicon",
    "refsim.reference",
    "refsim.bringup",
    "refsim_run",
    "refsim.cli",
    "refsim.ptx",
)

Graph = dict[str, set[str]]


def modules_of(package: str, root: Path) -> dict[str, Path]:
    """Every module of a package and its subpackages by dotted name; a package is its __init__."""
    found = {}
    for path in sorted(root.joinpath(*package.split(".")).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path) -> Iterator[tuple[str, ...]]:
    """The modules that a file may import, wherever the statement stands: the most likely reading first."""
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((each.name,) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((f"{base}.{each.name}", base) for each in node.names)


def graph_of(package: str, root: Path = ROOT) -> Graph:
    """Module -> modules of the same package that it imports."""
    modules = modules_of(package, root)
    graph: Graph = {name: set() for name in modules}
    for name, path in modules.items():
        for readings in imported(name, path):
            target = next((each for each in readings if each in modules), None)
            if target is not None and target != name:
                graph[name].add(target)
    return graph


def circle_in(graph: Graph) -> list[str]:
    """One circle as the modules along it, first and last the same; empty where there is none."""
    done: set[str] = set()

    def search(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return []
        for each in sorted(graph[name]):
            if found := search(each, [*trail, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := search(name, []))), [])


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_stands_in_an_import_circle(package: str) -> None:
    graph = graph_of(package)
    assert any(graph.values())
    assert not (found := circle_in(graph)), " -> ".join(found)


@pytest.mark.parametrize(
    "back",
    [
        "from knot.first import One",
        "import knot.first",
        "from knot import first",
        "from .first import One",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from knot.first import One",
        "def late():\n    from knot.first import One\n    return One",
    ],
)
def test_every_kind_of_import_is_seen(tmp_path: Path, back: str) -> None:
    package = tmp_path / "knot"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "first.py").write_text("from knot.second import TWO\nOne = TWO\n")
    (package / "second.py").write_text("TWO = 2\n")
    assert circle_in(graph_of("knot", tmp_path)) == []
    (package / "second.py").write_text(f"{back}\nTWO = 2\n")
    assert circle_in(graph_of("knot", tmp_path)) == ["knot.first", "knot.second", "knot.first"]
