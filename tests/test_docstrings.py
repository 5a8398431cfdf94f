"""Docstrings: functions that need one have one that begins with a verb, and fields that one names exist."""

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from refsim.bundled import PACKAGE, PACKAGES
from tests.commit_message import VERBS
from tests.test_public_surface import MODULES

ROOT = PACKAGE.parent
FILES = [path for folder in PACKAGES for path in sorted(folder.rglob("*.py"))]
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


LONG = 15
"""A function of more lines has a docstring."""


def faults(tree: ast.AST) -> Iterator[str]:
    """Yield what is wrong with the docstrings of a module's functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node)
            if said is None and (node.end_lineno or node.lineno) - node.lineno >= LONG:
                yield f"{node.name} has no docstring"
            elif said is not None and (first := re.split(r"\W", said, maxsplit=1)[0]).lower() not in VERBS:
                yield f"{node.name} begins with {first!r}, no verb of tests/commit_message.py"


def public_functions() -> Iterator[Callable[..., Any]]:
    """Yield the functions of all public modules, and the public methods of their classes."""
    for module in map(importlib.import_module, MODULES):
        for thing in (getattr(module, name) for name in module.__all__):
            members = vars(thing).items() if inspect.isclass(thing) else ()
            for function in (thing, *(each for name, each in members if not name.startswith("_"))):
                if inspect.isfunction(function) and function.__module__.startswith("refsim"):
                    yield function


def test_docstrings_of_functions_begin_with_a_verb_and_long_ones_have_one() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): said for path in FILES if (said := list(faults(ast.parse(path.read_text()))))
    }
    assert found == {}


def test_every_public_function_has_a_docstring() -> None:
    bare = {f"{each.__module__}.{each.__qualname__}" for each in public_functions() if not each.__doc__}
    assert bare == set()


def test_a_docstring_that_is_missing_or_begins_otherwise_is_seen() -> None:
    text = "def f():\n" + "    pass\n" * LONG
    assert list(faults(ast.parse(text))) == ["f has no docstring"]
    assert list(faults(ast.parse("def f():\n" + "    pass\n" * (LONG - 1)))) == []
    assert list(faults(ast.parse('def f():\n    """Return it."""\n'))) == []
    assert len(list(faults(ast.parse('def f():\n    """The thing."""\n')))) == 1


def test_fields_that_a_docstring_describes_exist() -> None:
    texts = {path: path.read_text() for path in FILES}
    found = {
        str(path.relative_to(ROOT)): names
        for path, text in texts.items()
        if "dataclass" in text and (names := list(strangers(ast.parse(text))))
    }
    assert found == {}


def test_a_field_that_is_gone_is_seen() -> None:
    text = '@dataclass(frozen=True)\nclass Row:\n    """Has `bits` and `blocks`."""\n    bits: int\n'
    assert list(strangers(ast.parse(text))) == ["Row: blocks"]
