"""From a file or PTX text to tokens: one regular expression, line numbers kept, comments dropped. A file is regular, not
too large, and in UTF-8."""

import re
from os import PathLike
from sys import intern
from typing import NamedTuple

from refsim.errors import Kind, RefsimError
from refsim.files.access import checked_path, read_whole, text_of


def read_ptx(path: "str | PathLike[str]") -> str:
    """Return the text of a file. Raises RefsimError: `no-such-file`, `not-a-file` (a pipe, a device, a directory),
    `too-large` before anything is read, `unreadable-file` for a file that is not UTF-8 (all exit 3)."""
    where = checked_path(path)
    return text_of(read_whole(where, MAX_TEXT, "a PTX file"), "a file of PTX or CUDA text", str(where))


MAX_TEXT = 64 << 20
MAX_TOKENS = 1 << 24
MAX_MARKS = 1 << 17  # one after another: no file has so many, and millions of them take minutes to refuse otherwise

# Words come first: most of a text is words, and no other token begins like one. The rest at the end is "odd".
_TOKEN = re.compile(
    r"""[ \t\r\f\v]*+(?:
      (?P<word>(?:[A-Za-z_][\w$]*|[%$][\w$]+)(?:(?:\.|::)[A-Za-z0-9_]+)*)
    | (?P<newline>\n\s*+)
    | (?P<semicolon>;[\s;]*+)
    | (?P<remark>//[^\n]*)
    | (?P<comment>/\*)
    | (?P<float>0[fF][0-9a-fA-F]{8}(?![0-9a-fA-F]) | 0[dD][0-9a-fA-F]{16}(?![0-9a-fA-F])
              | \d+\.\d*(?:[eE][+-]?\d+)? | \.\d+(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+)
    | (?P<location>\.loc(?:[ \t]+(?:0|[1-9]\d{0,8})){3}
        (?:,[ \t]*function_name[ \t]+(?:[A-Za-z_]|\$[\w$])[\w$]*(?:\+[1-9]\d{0,8})?
          ,[ \t]*inlined_at(?:[ \t]+(?:0|[1-9]\d{0,8})){3})?
        (?=\s\s*+(?://[^\n]*\n\s*+)*+[A-Za-z_$@{}.]))
    | (?P<integer>0[xX][0-9a-fA-F]+U? | 0[bB][01]+U? | \d+U?)
    | (?P<directive>\.[A-Za-z_]\w*(?:::\w+)*)
    | (?P<string>"[^"\n]*")
    | (?P<mark><<|>>|<=|>=|==|!=|&&|\|\||[{}()\[\],;:@!|+\-<>=*/~&^%?])
    | (?P<end>\Z)
    | (?P<odd>.))
    """,
    re.VERBOSE | re.ASCII,
)


class Token(NamedTuple):
    """Kind (float, integer, word, location, directive, string, mark, end), text and line number from 1."""

    kind: str
    text: str
    line: int


def malformed(what: str, line: int, help: str = "") -> RefsimError:
    """Return the error for text that is not PTX."""
    return RefsimError("malformed-ptx", what, where=f"PTX line {line}", help=help, kind=Kind.UNREADABLE)


def tokenize(text: str) -> list[Token]:
    """Return all tokens of a PTX text, closed by one of kind "end"; raise `malformed-ptx` with the line."""
    if len(text) > MAX_TEXT:
        raise malformed(f"the text has {len(text)} characters, more than the limit of {MAX_TEXT}", 1)
    tokens: list[Token] = []
    add, match, made = tokens.append, _TOKEN.match, tuple.__new__
    position, line, marks = 0, 1, 0
    while True:
        found = match(text, position)
        assert found is not None  # a token or the end always matches
        kind, position = found.lastgroup, found.end()
        if kind == "newline":
            line += found[kind].count("\n")
        elif kind == "semicolon":  # several in a row mean one
            add(Token("mark", ";", line))
            line += found[kind].count("\n")
        elif kind == "comment":
            end = text.find("*/", position)
            if end < 0:
                raise malformed("a comment is never closed", line)
            line += text.count("\n", position, end)
            position = end + 2
        elif kind == "end":
            break
        elif kind == "odd":
            raise malformed(f"unexpected character {found[kind]!r}", line)
        elif kind is not None and kind != "remark":
            add(made(Token, (kind, intern(found[kind]), line)))  # a third of the time that Token() takes
            marks = marks + 1 if kind == "mark" else 0
            if marks > MAX_MARKS:
                raise malformed(
                    f"more than {MAX_MARKS} marks stand in a row, of which the last is {found[kind]!r}", line
                )
            if len(tokens) > MAX_TOKENS:
                raise malformed(f"the text has more than {MAX_TOKENS} words and marks", line)
    tokens.append(Token("end", "", line))
    return tokens
