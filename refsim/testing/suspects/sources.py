"""Repairs of CUDA text, for mistakes that a compiler spreads over its code: bounds of loops, and the order that they run in."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_NEIGHBOUR = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_COMPARISON = re.compile(r"(?<=[\w\])])\s*(?<![<>=\-])(<=|>=|<|>)(?![<>=])\s*(?=[\w(\-])")
_TEMPLATE = re.compile(r"\b\w+\s*<[\w\s,:*&]*>")
_ONE = re.compile(r"(?<=[\w\])])\s*[-+]\s*1(?![\w.])")
_HEAD = r"for\s*\(\s*(?P<type>[\w\s]+?)\s+(?P<i>\w+)\s*=\s*"
_BY_ONE = r"(?:\+\+(?P=i)|(?P=i)\+\+|(?P=i)\s*\+=\s*1)\s*\)"
_DOWN_BY_ONE = r"(?:--(?P=i)|(?P=i)--|(?P=i)\s*-=\s*1)\s*\)"
_ASCENDING = re.compile(_HEAD + r"(?P<a>[^;]+);\s*(?P=i)\s*<\s*(?P<b>[^;]+);\s*" + _BY_ONE)
_DESCENDING = re.compile(_HEAD + r"(?P<b>[^;]+?)\s*-\s*1\s*;\s*(?P=i)\s*>=\s*(?P<a>[^;]+);\s*" + _DOWN_BY_ONE)
_HALVING = re.compile(
    _HEAD + r"(?P<a>[^;]+);\s*(?P=i)\s*(?:>\s*0|>=\s*1|!=\s*0)?\s*;\s*(?P=i)\s*(?:>>=\s*1|/=\s*2)\s*\)"
)
_DOUBLING = re.compile(_HEAD + r"1\s*;\s*(?P=i)\s*(?P<op><=?)\s*(?P<b>[^;]+);\s*(?P=i)\s*(?:<<=\s*1|\*=\s*2)\s*\)")


@dataclass(frozen=True)
class SourceEdit:
    """A CUDA text with one line mended; lines are counted from 1."""

    suspect: str
    says: str
    line: int
    text: str


def source_edits(text: str) -> Iterator[SourceEdit]:
    """Every text with one mistake of one line undone; preprocessor lines, comments and strings are left alone."""
    lines = text.split("\n")
    for suspect, says, rule in _RULES:
        for at, line in enumerate(lines):
            if line.lstrip().startswith(("#", "//", "*", "template")):
                continue
            code, comment = _cut(line)
            for mended in rule(code):
                yield SourceEdit(suspect, says, at + 1, "\n".join((*lines[:at], mended + comment, *lines[at + 1 :])))


def _cut(line: str) -> tuple[str, str]:
    """A line's code, and its comment behind it."""
    at = line.find("//")
    return (line, "") if at < 0 else (line[:at], line[at:])


def _bounds(code: str) -> Iterator[str]:
    """Each comparison with its bound taken in or left out, each 1 that is added or taken away left out."""
    templates = [(found.start(), found.end()) for found in _TEMPLATE.finditer(code)]
    for found in _COMPARISON.finditer(code):
        if not any(start <= found.start(1) < end for start, end in templates):
            yield code[: found.start(1)] + _NEIGHBOUR[found[1]] + code[found.end(1) :]
    for found in _ONE.finditer(code):
        yield code[: found.start()] + code[found.end() :]


def _other_way(code: str) -> Iterator[str]:
    """A loop from its end: ++ as --, halving as doubling, and the other way round."""
    if found := _ASCENDING.search(code):
        loop = "for ({type} {i} = ({b}) - 1; {i} >= ({a}); --{i})"
    elif found := _DESCENDING.search(code):
        loop = "for ({type} {i} = {a}; {i} < ({b}); ++{i})"
    elif found := _HALVING.search(code):
        loop = "for ({type} {i} = 1; {i} <= ({a}); {i} <<= 1)"
    elif found := _DOUBLING.search(code):
        last = "({b})" if found["op"] == "<=" else "({b}) / 2"
        loop = "for ({type} {i} = " + last + "; {i} > 0; {i} >>= 1)"
    else:
        return
    yield code[: found.start()] + loop.format(**found.groupdict()) + code[found.end() :]


_RULES: tuple[tuple[str, str, Callable[[str], Iterator[str]]], ...] = (
    ("reduction order", "a loop runs from its other end", _other_way),
    ("off by one", "a bound is one off", _bounds),
)
