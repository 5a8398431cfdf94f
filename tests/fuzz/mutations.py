"""How a good file becomes a bad one: bytes, numbers, words, lines and JSON values are changed, a few at a time."""

import json
import random
import re
from collections.abc import Callable
from typing import Any

NUMBERS = (
    *(b"0", b"-1", b"1", b"255", b"256", b"65536", b"2147483647", b"2147483648", b"4294967296", b"9223372036854775807"),
    *(
        b"9223372036854775808",
        b"18446744073709551616",
        b"9" * 30,
        b"9" * 5000,
        b"1e999",
        b"-0.0",
        b"1.5",
        b"0x10",
        b"NaN",
    ),
    *("²".encode(), "٣".encode(), b"1_0", b"07", b"+3", b"", b"true", b"null"),
)
PIECES = (
    *(
        b"\0",
        b"\xff",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\r\n",
        b"\n",
        b" ",
        b"\t",
        b'"',
        b"'",
        b"\\",
        b"\\ud800",
        b"/*",
        b"//",
    ),
    *(b"{", b"}", b"[", b"]", b"(", b")", b"<", b">", b",", b":", b";", b"=", b"#", b"%", b".", b"@", b"$", b"*"),
    *(b"[" * 5000, b"{" * 5000, b"(" * 5000, b'{"":' * 3000, b"-" * 5000, b"x" * 300, b"x" * 70_000, b"PK\x05\x06"),
    *(b"PK\x01\x02", b"PK\x03\x04", b"\x93NUMPY", b"__metadata__", b"../", b"/dev/zero", b"__import__('os')", b"%s%n"),
)
WORDS = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0x7FFFFFFFFFFFFFFF,
    0xFFFFFFFFFFFFFFFF,
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, 2**64, 10**30, 1.5, -0.0, 1e308, "", "x", "\0", "²", "x" * 300),
    *(
        [],
        {},
        [[]],
        [None],
        {"": None},
        [0, 0],
        [-1],
        "nan",
        "../../etc/passwd",
        "0x",
        [1] * 70,
        {"a": {"b": {"c": []}}},
    ),
)
_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")
_WORD = re.compile(rb"[A-Za-z_.%$][\w.%$]*")


def mutated(draw: random.Random, seeds: list[bytes]) -> bytes:
    """One of the seeds after 1 to 4 changes, or in a hundredth of all cases as it is."""
    content = draw.choice(seeds)
    if draw.random() < 0.01:
        return content
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 4))):
        content = draw.choice(CHANGES)(draw, content, seeds)
    return content


def _at(draw: random.Random, content: bytes) -> int:
    return draw.randrange(len(content) + 1)


def _flip(draw: random.Random, content: bytes, seeds: list[bytes]) -> bytes:
    at = _at(draw, content)
    return content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]


def _cut(draw: random.Random, content: bytes, seeds: list[bytes]) -> bytes:
    at = _at(draw, content)
    return draw.choice((content[:at], content[at:], content[:at] + content[at + draw.randrange(1, 40) :]))


def _insert(draw: random.Random, content: bytes, seeds: list[bytes]) -> bytes:
    at = _at(draw, content)
    return content[:at] + draw.choice(PIECES) + content[at:]


def _repeat(draw: random.Random, content: bytes, seeds: list[bytes]) -> bytes:
    first, last = sorted((_at(draw, content), _at(draw, content)))
    return content[:last] + content[first:last][:2000] * draw.choice((1, 1, 2, 30)) + content[last:]


def _splice(draw: random.Random, content: bytes, seeds: list[bytes]) -> bytes:
    other = draw.choice(seeds)
    return content[: _at(draw, content)] + other[_at(draw, other) :]


def _integer(draw: random.Random, content: bytes, seeds: list[bytes]) -> bytes:
    at, size = _at(draw, content), draw.choice((1, 2, 4, 8))
    word = (draw.choice(WORDS) + draw.choice((-1, 0, 0, 1))) % (1 << 8 * size)
    return content[:at] + word.to_bytes(size, draw.choice(("little", "big"))) + content[at + size :]


def _number(draw: random.Random, content: bytes, seeds: list[bytes]) -> bytes:
    return _replaced(draw, content, _NUMBER, lambda: draw.choice(NUMBERS))


def _word(draw: random.Random, content: bytes, seeds: list[bytes]) -> bytes:
    others = _WORD.findall(draw.choice(seeds)[:4000]) or [b"x"]
    return _replaced(draw, content, _WORD, lambda: draw.choice((draw.choice(others), draw.choice(PIECES))))


def _replaced(draw: random.Random, content: bytes, pattern: re.Pattern[bytes], piece: Callable[[], bytes]) -> bytes:
    found = list(pattern.finditer(content[:100_000]))
    if not found:
        return content + piece()
    chosen = draw.choice(found)
    return content[: chosen.start()] + piece() + content[chosen.end() :]


def _lines(draw: random.Random, content: bytes, seeds: list[bytes]) -> bytes:
    lines = content.split(b"\n")
    at = draw.randrange(len(lines))
    moved = draw.choice(draw.choice(seeds).split(b"\n"))
    return b"\n".join(draw.choice((lines[:at] + lines[at + 1 :], [*lines[:at], moved, *lines[at:]], lines[::-1])))


def _json(draw: random.Random, content: bytes, seeds: list[bytes]) -> bytes:
    """A value inside a JSON text (behind 8 bytes of length, in a safetensors file) replaced, removed or doubled."""
    start = 8 if content[8:9] == b"{" else 0
    try:
        end = len(content) if not start else 8 + int.from_bytes(content[:8], "little")
        record = json.loads(content[start:end])
    except (ValueError, RecursionError):
        return _number(draw, content, seeds)
    text = json.dumps(_changed(draw, record)).encode()
    return (len(text).to_bytes(8, "little") if start else b"") + text + content[end:]


def _changed(draw: random.Random, value: Any) -> Any:
    if not isinstance(value, dict | list) or not value or draw.random() < 0.15:
        return draw.choice(VALUES)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw.choice(keys)
    if draw.random() < 0.2:
        if isinstance(value, list):
            return value[:key] + value[key + 1 :]
        return {name: item for name, item in value.items() if name != key}
    if draw.random() < 0.1 and isinstance(value, dict):
        return {**value, draw.choice(("", "x", "x" * 300, "extra", "__metadata__", "²")): draw.choice(VALUES)}
    copied = value.copy()
    copied[key] = _changed(draw, value[key])
    return copied


CHANGES = (_flip, _cut, _insert, _repeat, _splice, _integer, _integer, _number, _number, _word, _lines, _json, _json)
