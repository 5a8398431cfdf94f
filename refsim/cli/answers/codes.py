"""Codes of errors and findings, read from where they are raised: what each says, by which rule, and the way out.

One definition: the sentences of an error stand in the source that raises it. Here they are read from there, with names in
angle brackets where a value will stand: no ⟨kind⟩ is called ⟨name⟩.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import refsim

if TYPE_CHECKING:
    from refsim.ptx.findings.table import Check

ROOT = Path(refsim.__file__).parent
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
RANGES = ("whole", "whole_number", "whole_numbers")
"""Functions of refsim.integers: the first argument, with -range behind it, is the code of a number outside."""

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
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text("utf-8")
        if _may_raise(text, code):
            module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
            for each, saying in _of_module(text, module):
                found.setdefault(each, {})[saying] = None
    if code and code not in found and (family := _of_family(code)):
        found[code] = {family: None}
    return {each: tuple(found[each]) for each in sorted(found) if code in ("", each)}


def _of_family(code: str) -> Saying | None:
    """What a code says whose first or last part is the name of an argument: thread-range, unknown-map."""
    if CODE.fullmatch(code) and code.startswith("unknown-"):
        name = code.removeprefix("unknown-").replace("-", " ")
        return Saying("refsim", "", what=f"no {name} is called ⟨name⟩", help="nearest: ⟨names⟩")
    if CODE.fullmatch(code) and code.endswith("-range"):
        return Saying("refsim", "", what=f"{code.removesuffix('-range').replace('-', ' ')} ⟨number⟩ is outside ⟨range⟩")
    return None


def _may_raise(text: str, code: str) -> bool:
    words = code.removeprefix("unknown-").removesuffix("-range")
    wanted = {f'"{each}"' for each in (code, words, words.replace("-", " "))} | {f'"[{code}] '}
    if not code:
        wanted = {"code=", *(f"{each}(" for each in (*MAKERS, *RANGES, "unknown"))}
    return any(each in text for each in wanted)


@cache
def checks() -> "dict[str, Check]":
    """The checks of a launch by the code that their findings carry."""
    from refsim.ptx.findings.table import CHECKS, STOPS

    return {row.name: row for row in (*STOPS, *CHECKS)}


def _of_module(text: str, module: str) -> Iterator[tuple[str, Saying]]:
    tree = ast.parse(text)
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = _calls(tree, "", tree, [])
    texts = cache(lambda around: dict(_assigned(around)))
    for function, around, call in calls:
        for code in _codes(call, constants):
            said = _sentences(code, call, texts(around))
            for what in (said["what"],) if said["what"] else _templates(calls, around, call):
                yield code, Saying(module, function, **{**said, "what": what})
    if not SPELLED.search(text):
        return
    for definition in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(definition):
            if isinstance(node, ast.Constant | ast.JoinedStr) and (found := SENTENCE.fullmatch(_text(node, {}))):
                yield found[1], Saying(module, definition.name, what=found[2])


def _templates(calls: list[_Call], around: ast.AST, call: ast.Call) -> Iterator[str]:
    """What a code says that gets its sentence elsewhere: from callers in its module, else the name of what is said.

    `refuse("no shape")` of a function refuse(what) gives no shape; a sentence that a function makes gives ⟨sentence⟩.
    """
    made = next((each.value for each in call.keywords if each.arg == "what"), call.args[1] if call.args[1:] else None)
    if made is None:
        yield "⟨what⟩"
        return
    given = list(_given(calls, around, made.id)) if isinstance(made, ast.Name) else []
    yield from given or (f"⟨{name if (name := _name(made)).isidentifier() else 'what'}⟩",)


def _given(calls: list[_Call], around: ast.AST, parameter: str) -> Iterator[str]:
    """The texts that callers in the module give for a parameter of a function."""
    if not isinstance(around, ast.FunctionDef):
        return
    names = [each.arg for each in around.args.args if each.arg != "self"]
    for _, there, call in calls if parameter in names else ():
        if _name(call.func) == around.name.strip("_"):
            place = names.index(parameter)
            given = next((each.value for each in call.keywords if each.arg == parameter), None)
            node = given or (call.args[place] if len(call.args) > place else None)
            if node is not None and (text := _text(node, dict(_assigned(there)))):
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


def _assigned(function: ast.AST) -> Iterator[tuple[str, str]]:
    """The variables of a function that hold a text."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and (text := _text(node.value, {})):
            yield node.targets[0].id, text


def _codes(call: ast.Call, constants: dict[str, str]) -> Iterator[str]:
    name = (
        call.func.id
        if isinstance(call.func, ast.Name)
        else call.func.attr
        if isinstance(call.func, ast.Attribute)
        else ""
    )
    first = call.args[0] if call.args else None
    given = next((each.value for each in call.keywords if each.arg == "code"), first if name in MAKERS else None)
    if name == "unknown" or name in RANGES:
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            words = first.value.replace(" ", "-")
            yield f"unknown-{words}" if name == "unknown" else f"{words}-range"
        return
    for choice in (given.body, given.orelse) if isinstance(given, ast.IfExp) else (given,):
        value = constants.get(choice.id) if isinstance(choice, ast.Name) else getattr(choice, "value", None)
        if isinstance(value, str) and CODE.fullmatch(value):
            yield value


def _sentences(code: str, call: ast.Call, texts: dict[str, str]) -> dict[str, str]:
    """The texts among the arguments of a call: by their names, else the first text behind the code is what it says."""
    if code not in _constants(call) and (family := _of_family(code)):
        return {"what": family.what, "help": family.help}
    named = {each.arg: _text(each.value, texts) for each in call.keywords if each.arg in PARTS}
    behind = [text for each in call.args[1:] if (text := _text(each, texts))]
    if isinstance(call.func, ast.Name) and call.func.id == "RefsimError":
        named |= {part: text for part, each in zip(PARTS, call.args[1:], strict=False) if (text := _text(each, texts))}
    elif behind:
        named.setdefault("what", behind[0])
    return {part: named.get(part, "") for part in ("what", "rule", "help")}


def _constants(call: ast.Call) -> set[object]:
    return {each.value for each in ast.walk(call) if isinstance(each, ast.Constant)}


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
            return f"⟨{_name(value)}⟩"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, texts) + _text(right, texts)
        case ast.IfExp(body=body, orelse=orelse):
            return _text(body, texts) or _text(orelse, texts)
        case _:
            return ""


def _name(value: ast.expr) -> str:
    """What a value in a sentence is called: `self.opcode` is opcode, `len(rows)` is rows."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_")
        case ast.Call(args=[first, *_]):
            return _name(first)
        case ast.Call(func=func):
            return _name(func)
        case ast.Subscript(value=inner):
            return _name(inner)
        case ast.Constant(value=text):
            return str(text)
        case _:
            return "..."
