"""PTX text to tokens: one regular expression, line numbers kept, comments dropped."""

import re
from sys import intern
from typing import NamedTuple

from refsim.errors import Kind, RefsimError

MAX_TEXT = 64 << 20
MAX_TOKENS = 1 << 24
MAX_MARKS = 1 << 17  # one after another: no file has so many, and millions of them take minutes to refuse otherwise

_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\f\v]+ | //[^\n]*)
    | (?P<newline>\n\s*+)
    | (?P<semicolon>;[\s;]*+)
    | (?P<comment>/\*)
    | (?P<float>0[fF][0-9a-fA-F]{8}(?![0-9a-fA-F]) | 0[dD][0-9a-fA-F]{16}(?![0-9a-fA-F])
              | \d+\.\d*(?:[eE][+-]?\d+)? | \.\d+(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+)
    | (?P<integer>0[xX][0-9a-fA-F]+U? | 0[bB][01]+U? | \d+U?)
    | (?P<word>(?:[A-Za-z_][\w$]*|[%$][\w$]+)(?:(?:\.|::)[A-Za-z0-9_]+)*)
    | (?P<directive>\.[A-Za-z_]\w*(?:::\w+)*)
    | (?P<string>"[^"\n]*")
    | (?P<mark><<|>>|<=|>=|==|!=|&&|\|\||[{}()\[\],;:@!|+\-<>=*/~&^%?])
    """,
    re.VERBOSE | re.ASCII,
)


class Token(NamedTuple):
    """Kind (float, integer, word, directive, string, mark, end), text and line number from 1."""

    kind: str
    text: str
    line: int


def malformed(what: str, line: int, help: str = "") -> RefsimError:
    """The error for text that is not PTX."""
    return RefsimError("malformed-ptx", what, where=f"PTX line {line}", help=help, kind=Kind.UNREADABLE)


def tokenize(text: str) -> list[Token]:
    """All tokens of a PTX text, closed by one of kind "end"; RefsimError `malformed-ptx` names the line."""
    if len(text) > MAX_TEXT:
        raise malformed(f"the text has {len(text)} characters, more than the limit of {MAX_TEXT}", 1)
    tokens: list[Token] = []
    position, line, match, marks = 0, 1, _TOKEN.match, 0
    while position < len(text):
        found = match(text, position)
        if found is None:
            raise malformed(f"unexpected character {text[position]!r}", line)
        kind, position = found.lastgroup, found.end()
        if kind == "newline":
            line += found.group().count("\n")
        elif kind == "comment":
            end = text.find("*/", position)
            if end < 0:
                raise malformed("a comment is never closed", line)
            line += text.count("\n", position, end)
            position = end + 2
        elif kind == "semicolon":  # many are as good as one
            tokens.append(Token("mark", ";", line))
            line += found.group().count("\n")
        elif kind != "space":
            tokens.append(Token(kind or "", intern(found.group()), line))
            marks = marks + 1 if kind == "mark" else 0
            if marks > MAX_MARKS:
                raise malformed(
                    f"more than {MAX_MARKS} marks stand in a row, of which the last is {found.group()!r}", line
                )
            if len(tokens) > MAX_TOKENS:
                raise malformed(f"the text has more than {MAX_TOKENS} words and marks", line)
    tokens.append(Token("end", "", line))
    return tokens
