"""A reader of the sources: every code that refsim raises, with the sentences of each place, to hold table and samples to.

A name in angle brackets stands for a value: no ⟨kind⟩ is called ⟨name⟩.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from refsim.bundled import PACKAGE, PACKAGES
from refsim.cli.answers.codes import checks
from refsim.errors import unknown_code

CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
SENTENCE = re.compile(r"\[([a-z]+(?:-[a-z]+)+)\] (.+)")
"""A sentence of a finding that is written with its code in front."""
SPELLED = re.compile(r"[\"']\[[a-z]+-")
"""How such a sentence begins in a source."""
PARTS = ("what", "where", "rule", "help")
"""What follows a code, in the order of RefsimError's arguments."""
MAKERS = {
    "RefsimError": 0,
    "UnsupportedError": 0,
    "fault": 0,
    "unreadable": 0,
    "refused": 0,
    "_refuse": 0,
    "record": 0,
    "warn": 0,
    "note": 0,
}
"""Functions that take a code, and at which place."""
UNKNOWN = ("unknown", "named", "check_named")
RANGES = ("whole", "whole_number", "whole_numbers")
"""Functions of refsim.integers: the first argument is what a number is called that is out-of-range."""

_Call = tuple[str, ast.AST, ast.Call]  # of which function, that function, the call


@dataclass(frozen=True)
class Saying:
    """One place that raises a code: a function of a module, and the sentences that it gives, empty where it gives none."""

    module: str
    function: str
    what: str = ""
    rule: str = ""
    help: str = ""


@cache  # the sources of an installed refsim stay as they are
def sayings(code: str = "") -> dict[str, tuple[Saying, ...]]:
    """Every code of the installed refsim with all places that raise it, or one alone, sooner: sayings("batch")["batch"]."""
    found: dict[str, dict[Saying, None]] = {check: {} for check in checks()}
    for path, text in _texts().items():
        if _may_raise(text, code):
            module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
            for each, saying in _of_module(_source(path), module):
                found.setdefault(each, {})[saying] = None
    return {each: tuple(_worded(found[each])) for each in sorted(found) if code in ("", each)}


@cache
def _texts() -> dict[Path, str]:
    files = sorted(path for folder in PACKAGES for path in folder.rglob("*.py"))
    return {path: path.read_text("utf-8") for path in files}


@dataclass(frozen=True, eq=False)
class _Source:
    """A module as it was read."""

    text: str
    tree: ast.Module
    calls: list[_Call]


@cache
def _source(path: Path) -> _Source:
    tree = ast.parse(_texts()[path])
    return _Source(_texts()[path], tree, _calls(tree, "", tree, []))


def _worded(found: Iterable[Saying]) -> list[Saying]:
    """Without those whose sentence and rule are values alone, where others have words."""
    found = list(found)
    return [each for each in found if not (is_bare(each.what) and is_bare(each.rule))] or found


def is_bare(sentence: str) -> bool:
    """Whether a sentence has no word of its own, only places of values: "⟨name⟩: ⟨error⟩"."""
    return not re.search(r"\w", re.sub(r"⟨[^⟩]*⟩", "", sentence))


def _may_raise(text: str, code: str) -> bool:
    wanted = [f'"{code}"', f'"[{code}] '] if code else ["code=", *(f"{each}(" for each in MAKERS)]
    wanted += [f"{each}(" for each in UNKNOWN] * (not code or code.startswith("unknown-"))
    wanted += [f"{each}(" for each in RANGES] * (code in ("", "out-of-range"))
    return any(each in text for each in wanted)


def _of_module(source: _Source, module: str) -> Iterator[tuple[str, Saying]]:
    tree = source.tree
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    texts = cache(lambda around, line: dict(_assigned(around, constants, line)))
    for function, around, call in source.calls:
        for code in _codes(call, constants, tree):
            said = _sentences(call, texts(around, call.lineno), constants)
            for what in (said["what"],) if said["what"] else _templates(source, around, call):
                yield code, Saying(module, function, **{**said, "what": what})
    if not SPELLED.search(source.text):
        return
    for definition in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(definition):
            if isinstance(node, ast.Constant | ast.JoinedStr) and (found := SENTENCE.fullmatch(_text(node, {}))):
                yield found[1], Saying(module, definition.name, what=found[2])


def _templates(source: _Source, around: ast.AST, call: ast.Call) -> Iterator[str]:
    """What a code says that gets its sentence elsewhere: from callers in its module, else the name of what is said.

    `refuse("no shape")` of a function refuse(what) gives no shape; a sentence that a function makes gives ⟨sentence⟩.
    """
    behind = [each for each in call.args[1:] if not isinstance(each, ast.Constant)]  # a constant is the place of a lane
    made = next((each.value for each in call.keywords if each.arg == "what"), behind[0] if behind else None)
    given: list[str] = []
    match made:
        case ast.Name(id=name):
            given = list(_given(source, around, name)) or list(_given_elsewhere(source, around, name))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            given = list(_returned(source.tree, name))
        case ast.Attribute(attr="what"):
            given = ["the sentence of another error"]
    yield from given or (f"⟨{name if made and (name := _name(made)).isidentifier() else 'what'}⟩",)


def _returned(tree: ast.Module, name: str) -> Iterator[str]:
    """The texts that a function of the module makes."""
    for definition in _definitions(tree, name):
        texts = dict(_assigned(definition, {}))
        for node in _returns(tree, name):
            if node.value is not None and (text := _text(node.value, texts)):
                yield text


def _definitions(tree: ast.Module, name: str) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)


def _returns(tree: ast.Module, name: str) -> Iterator[ast.Return]:
    for definition in _definitions(tree, name):
        yield from (node for node in ast.walk(definition) if isinstance(node, ast.Return))


def _given_elsewhere(source: _Source, around: ast.AST, parameter: str) -> Iterator[str]:
    """The texts that callers in other modules give, which know the function by its name."""
    if isinstance(around, ast.FunctionDef) and around in source.tree.body and not around.name.startswith("_"):
        for path, text in _texts().items():
            if f"{around.name}(" in text and re.search(rf"import .*\b{around.name}\b|^    {around.name},$", text, re.M):
                yield from _given(_source(path), around, parameter)


def _given(source: _Source, around: ast.AST, parameter: str) -> Iterator[str]:
    """The texts that callers in the module give for a parameter of a function."""
    if not isinstance(around, ast.FunctionDef):
        return
    names = [each.arg for each in around.args.args if each.arg != "self"]
    for _, there, call in source.calls if parameter in names else ():
        if _name(call.func) == around.name.strip("_"):
            place = names.index(parameter)
            given = next((each.value for each in call.keywords if each.arg == parameter), None)
            node = given or (call.args[place] if len(call.args) > place else None)
            if node is not None and (text := _text(node, dict(_assigned(there, {})))):
                yield text


def _calls(tree: ast.AST, function: str, around: ast.AST, found: list[_Call]) -> list[_Call]:
    """Every call, with the qualified name of the function around it, and that function, behind those `found` before."""
    for name in tree._fields:
        value = getattr(tree, name)
        for node in value if isinstance(value, list) else (value,):
            if isinstance(node, ast.Call):
                found.append((function, around, node))
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                _calls(node, f"{function}.{node.name}".lstrip("."), node, found)
            elif isinstance(node, ast.AST) and node._fields:
                _calls(node, function, around, found)
    return found


def _assigned(function: ast.AST, texts: dict[str, str], line: int | None = None) -> Iterator[tuple[str, str]]:
    """The variables of a function that hold a text; `texts` are those of its module. One of several words is all of them.

    With `line`, a variable that holds several texts in turn holds the last one before that line.
    """
    held = dict(texts)
    nodes = [each for each in ast.walk(function) if isinstance(each, ast.Assign)]
    if line is not None:
        nodes.sort(key=lambda each: (each.lineno < line, each.lineno))
    for node in nodes:
        for name, value in _pairs(node):
            chosen = isinstance(value, ast.IfExp) and _one_of(value, held)
            if text := chosen or _text(value, held):
                held[name] = text
                yield name, text


def _pairs(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names and what is assigned to them: of `a, b = x, y` both."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(names) == len(values):
            yield from (
                (name.id, value) for name, value in zip(names, values, strict=True) if isinstance(name, ast.Name)
            )


def _one_of(choice: ast.IfExp, texts: dict[str, str]) -> str:
    """ "reads" if c else "writes" is ⟨reads or writes⟩; "" where one of them is no single word."""
    words: list[str] = []
    for node in (choice.body, choice.orelse):
        text = (isinstance(node, ast.IfExp) and _one_of(node, texts)) or _text(node, texts)
        words += text.strip("⟨⟩").split(" or ")
    return f"⟨{' or '.join(words)}⟩" if all(word.isalpha() for word in words) else ""


def _codes(call: ast.Call, constants: dict[str, str], tree: ast.Module) -> Iterator[str]:
    name = (
        call.func.id
        if isinstance(call.func, ast.Name)
        else call.func.attr
        if isinstance(call.func, ast.Attribute)
        else ""
    )
    first = call.args[0] if call.args else None
    given = next((each.value for each in call.keywords if each.arg == "code"), first if name in MAKERS else None)
    if name in UNKNOWN or name in RANGES:
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield unknown_code(first.value) if name in UNKNOWN else "out-of-range"
        return
    if isinstance(given, ast.Attribute):  # a property of the module
        given = next((each.value for each in _returns(tree, given.attr)), None)
    for choice in (given.body, given.orelse) if isinstance(given, ast.IfExp) else (given,):
        value = constants.get(choice.id) if isinstance(choice, ast.Name) else getattr(choice, "value", None)
        if isinstance(value, str) and CODE.fullmatch(value):
            yield value


def _sentences(call: ast.Call, texts: dict[str, str], constants: dict[str, str]) -> dict[str, str]:
    """The texts among the arguments of a call: by their names, else the first text behind the code is what it says, which
    no constant of the module is: those are rules."""
    match call:
        case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(kind)), *_]) if name in UNKNOWN:
            return {"what": f"no {kind} is called ⟨name⟩", "rule": "", "help": "nearest: ⟨names⟩"}
        case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(what)), *_]) if name in RANGES:
            return {"what": f"{what} ⟨number⟩ is outside ⟨range⟩", "rule": "", "help": ""}
    every = constants | texts
    named = {each.arg: _text(each.value, every) for each in call.keywords if each.arg in PARTS}
    behind = [text for each in call.args[1:] if (text := _text(each, texts))]
    if isinstance(call.func, ast.Name) and call.func.id == "RefsimError":
        named |= {part: text for part, each in zip(PARTS, call.args[1:], strict=False) if (text := _text(each, every))}
    elif behind:
        named.setdefault("what", behind[0])
    return {part: named.get(part, "") for part in ("what", "rule", "help")}


def _text(node: ast.expr, texts: dict[str, str]) -> str:
    """A text or f-string as one line; "" for what is neither. `texts` are those of variables."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return texts.get(name, "")
        case ast.JoinedStr(values=values):
            return "".join(_text(each, texts) for each in values)
        case ast.FormattedValue(value=ast.Name(id=name)) if name in texts:
            return texts[name]
        case ast.FormattedValue(value=value):
            return (isinstance(value, ast.IfExp) and _one_of(value, texts)) or f"⟨{_name(value)}⟩"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, texts) + _text(right, texts)
        case ast.IfExp(body=body, orelse=orelse):
            return _text(body, texts) or _text(orelse, texts)
        case ast.Call(func=ast.Attribute(attr="join"), args=[ast.GeneratorExp(elt=one) | ast.ListComp(elt=one)]) if (
            text := _text(one, texts)
        ):
            return text
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(between)), attr="join"), args=[listed]):
            return f"⟨{_name(listed)}⟩{between}⟨{_name(listed)}⟩" if re.search(r"\w", between) else f"⟨{_name(listed)}⟩"
        case ast.Call(func=ast.Attribute(value=ast.JoinedStr() as text, attr="rstrip")):
            return _text(text, texts)
        case _:
            return ""


def _name(value: ast.expr) -> str:
    """What a value in a sentence is called: `self.opcode` is opcode, `len(rows)` is rows."""
    match value:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="type")), attr="__name__"):
            return "type"
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_")
        case ast.Call(func=ast.Name() | ast.Attribute(value=ast.Constant()), args=[first, *_]):
            return _name(first)
        case ast.Call(func=func):
            return _name(func)
        case ast.Subscript(value=inner):
            return _name(inner)
        case ast.Constant(value=text):
            return str(text)
        case ast.GeneratorExp(elt=inner) | ast.ListComp(elt=inner):
            return _name(inner)
        case _:
            named = (each for each in ast.walk(value) if isinstance(each, ast.Name | ast.Attribute))
            return next(map(_name, named), "value")
