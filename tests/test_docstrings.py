"""What a docstring calls by name is there: a row's description never outlives its fields."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import refsim

ROOT = Path(refsim.__file__).parent
NAMED = re.compile(r"`([a-z][a-z_]*)`")


def strangers(tree: ast.Module) -> Iterator[str]:
    """Names in backticks of a dataclass's docstring that its module never uses as a name, an argument or a text."""
    named = [
        (node.name, name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list)
        for name in NAMED.findall(ast.get_docstring(node) or "")
    ]
    known = set(known_names(tree)) if named else set()
    yield from (f"{row}: {name}" for row, name in named if name not in known)


def known_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.alias(name=name) | ast.Attribute(attr=name):
                yield from name.split(".")
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.keyword(arg=str(name)):
                yield name
            case _:
                pass


def test_fields_that_a_docstring_describes_exist() -> None:
    texts = {path: path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    found = {
        str(path.relative_to(ROOT.parent)): names
        for path, text in texts.items()
        if "dataclass" in text and (names := list(strangers(ast.parse(text))))
    }
    assert found == {}


def test_a_field_that_is_gone_is_seen() -> None:
    text = '@dataclass(frozen=True)\nclass Row:\n    """Has `bits` and `blocks`."""\n    bits: int\n'
    assert list(strangers(ast.parse(text))) == ["Row: blocks"]
