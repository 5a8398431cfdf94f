"""No file over 600 lines, no function over 60: what is longer is parted by meaning. Only tables lay themselves out."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("refsim", "refsim_run", "gpu", "benchmarks", "properties", "conformance", "tests")
FILE_LINES, FUNCTION_LINES = 600, 60
TABLES = 61
UNFORMATTED = re.compile("# fmt: (?:skip|off)")


def sources(root: Path) -> list[Path]:
    return [*root.glob("*.py"), *(path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py")))]


def too_long(path: Path) -> Iterator[str]:
    """The file, and those of its functions, from `def` to their last line, that are longer than they may be."""
    text = path.read_text()
    if (lines := text.count("\n")) > FILE_LINES:
        yield f"{lines} lines"
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{node.name}: {lines} lines"


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements in a node, without their expressions: in those stands no function that has a name."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, part, ()):
            yield each
            yield from statements(each)


def test_every_file_and_function_can_be_read_at_once() -> None:
    found = {path.relative_to(ROOT).as_posix(): list(too_long(path)) for path in sources(ROOT)}
    assert len(found) > 500
    assert not {name: said for name, said in found.items() if said}


def test_only_tables_lay_themselves_out() -> None:
    found = {path.relative_to(ROOT).as_posix(): len(UNFORMATTED.findall(path.read_text())) for path in sources(ROOT)}
    assert 0 < sum(found.values()) <= TABLES, {name: count for name, count in found.items() if count}


def test_one_line_more_is_too_much(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    body = "class Held:\n    async def inner(self):\n" + "        pass\n" * (FUNCTION_LINES - 1)
    path.write_text(body + "\n" * (FILE_LINES - body.count("\n")))
    assert list(too_long(path)) == []
    path.write_text(body + "        pass\n" + "\n" * (FILE_LINES - body.count("\n")))
    assert list(too_long(path)) == ["601 lines", "inner: 61 lines"]
