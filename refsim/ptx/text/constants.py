"""Constant expressions: 64-bit integers with or without sign, doubles, and floats spelled by their bits.

The rules are those of ptxas 13.0, tested by the values that it puts into variables. An integer is signed unless it ends
in U or does not fit. Two integers meet as unsigned if one of them is unsigned. `~` and `%` are unsigned. Comparisons
and `! && ||` give 0 or 1. A shift counts modulo 64 and keeps its left type. Integers and doubles never mix, and 0f...
may only stand alone.
"""

import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass

from refsim.ptx.text.lexer import Token, malformed
from refsim.ptx.text.syntax import Immediate

MAX_DEPTH = 64
WARP_SIZE = 32
_MASK = (1 << 64) - 1
_PRECEDENCE = {
    "||": 1,
    "&&": 2,
    "|": 3,
    "^": 4,
    "&": 5,
    "==": 6,
    "!=": 6,
    "<": 7,
    "<=": 7,
    ">": 7,
    ">=": 7,
    "<<": 8,
    ">>": 8,
    "+": 9,
    "-": 9,
    "*": 10,
    "/": 10,
    "%": 10,
}
_COMPARISONS: dict[str, Callable[[int | float, int | float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "|": operator.or_,
    "^": operator.xor,
    "&": operator.and_,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_DOUBLES: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_STARTS = ("-", "+", "~", "!", "(")
_GOES_ON = frozenset((*_PRECEDENCE, "?"))
_SURE_TO_FIT = 19  # characters: a number of this length has less than 64 bits in every base


class Cursor:
    """A position in tokens for a recursive descent; every mismatch is `malformed-ptx` with its line."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    @property
    def token(self) -> Token:
        """Return the token at the position."""
        return self.tokens[self.at]

    def take(self) -> Token:
        """Return the token at the position and step over it; raise `malformed-ptx` at the end."""
        token = self.tokens[self.at]
        if token.kind == "end":
            raise malformed("the text ends in the middle of a statement", token.line)
        self.at += 1
        return token

    def accept(self, *texts: str) -> str | None:
        """Step over the token if its text is one of these; return the text, else None."""
        token = self.tokens[self.at]
        if token.text in texts and token.kind not in ("string", "end"):
            self.at += 1
            return token.text
        return None

    def expect(self, text: str) -> None:
        """Step over the token, which must have this text."""
        if self.accept(text) is None:
            raise malformed(f"expected {text!r}, found {self.token.text or 'the end of the text'!r}", self.token.line)

    def word(self) -> str:
        """Return the text of a word and step over it; raise `malformed-ptx` for another token."""
        token = self.take()
        if token.kind != "word":
            raise malformed(f"expected a name, found {token.text!r}", token.line)
        return token.text

    def skip_statement(self) -> None:
        """Skip to after the next semicolon."""
        while self.take().text != ";":
            pass

    def skip_group(self, opening: str, closing: str) -> None:
        """Skip to after the mark that closes the group which begins here."""
        self.expect(opening)
        depth = 1
        while depth:
            token = self.take()
            if token.kind == "mark":
                depth += (token.text == opening) - (token.text == closing)


@dataclass(frozen=True, slots=True)
class _Value:
    """A constant while it is computed: kind "s64", "u64", "f64", or "f32" for the bits of 0f..."""

    kind: str
    number: int | float


class Constants(Cursor):
    """A cursor that reads constant expressions."""

    def starts_constant(self) -> bool:
        """Return whether a constant may begin here; the caller separates `!` of a negated predicate."""
        token = self.token
        return token.kind in ("integer", "float") or token.text == "WARP_SZ" or token.text in _STARTS

    def constant(self) -> Immediate:
        """Return the value of the expression that begins here; raise `malformed-ptx` if there is none."""
        if (plain := self._plain_integer()) is not None:
            return Immediate(plain)
        value = self._ternary(0)
        if value.kind == "f64":
            return Immediate(int.from_bytes(struct.pack("<d", value.number), "little"), "f64")
        return Immediate(int(value.number), "f32" if value.kind == "f32" else "int")

    def integer_constant(self) -> int:
        """Return the value of an expression that must be an integer."""
        if (plain := self._plain_integer()) is not None:
            return plain
        line, found = self.token.line, self.constant()
        if found.kind != "int":
            raise malformed("an integer is needed here, not a float", line)
        return found.value

    def _plain_integer(self) -> int | None:
        """Return a number without an operator after it, or None; most numbers are plain and need no descent."""
        token = self.tokens[self.at]
        if token.kind != "integer" or len(token.text) > _SURE_TO_FIT or self.tokens[self.at + 1].text in _GOES_ON:
            return None
        self.at += 1
        return unsigned_integer(token)

    def _ternary(self, depth: int) -> _Value:
        """Return the value of an expression, perhaps with `?` and `:`."""
        if depth > MAX_DEPTH:
            raise malformed(f"a constant expression is nested deeper than {MAX_DEPTH}", self.token.line)
        value = self._binary(1, depth)
        if self.token.text != "?":
            return value
        chooses = self._integer(value)
        self.take()
        first = self._ternary(depth + 1)
        self.expect(":")
        second = self._ternary(depth + 1)
        self._integer(first)
        self._integer(second)
        return first if chooses else second

    def _binary(self, least: int, depth: int) -> _Value:
        """Return the value of operators that bind at least as strongly as `least`."""
        value = self._unary(depth)
        while (level := _PRECEDENCE.get(self.token.text, 0)) >= least and self.token.kind == "mark":
            sign = self.take()
            value = self._combined(sign, value, self._binary(level + 1, depth))
        return value

    def _unary(self, depth: int) -> _Value:
        """Return the value of an operand with its signs, casts and parentheses."""
        applied: list[Token] = []
        while True:
            token = self.token
            if token.text in ("-", "+", "~", "!"):
                applied.append(self.take())
            elif token.text == "(" and self.tokens[self.at + 1].text in (".s64", ".u64"):
                self.take()
                applied.append(self.take())
                self.expect(")")
            else:
                break
        if self.accept("("):
            value = self._ternary(depth + 1)
            self.expect(")")
        elif self.accept("WARP_SZ"):
            value = _Value("s64", WARP_SIZE)
        else:
            value = self._literal()
        for token in reversed(applied):
            value = self._applied(token, value)
        return value

    def _literal(self) -> _Value:
        """Return the value of an integer or float token."""
        token = self.take()
        if token.kind not in ("integer", "float") or len(token.text) > 70:
            raise malformed(f"expected an operand, found {token.text[:80]!r}", token.line)
        if token.kind == "integer":
            number = unsigned_integer(token)
            if number > _MASK:
                raise malformed(f"{token.text!r} does not fit 64 bits", token.line)
            return _Value("u64" if token.text.endswith("U") or number >> 63 else "s64", number)
        if token.text[:2] in ("0f", "0F"):
            return _Value("f32", int(token.text[2:], 16))
        if token.text[:2] in ("0d", "0D"):
            return _Value("f64", struct.unpack("<d", int(token.text[2:], 16).to_bytes(8, "little"))[0])
        double = float(token.text)
        if double == float("inf"):
            raise malformed(f"{token.text!r} is beyond every double", token.line)
        return _Value("f64", double)

    def _integer(self, value: _Value) -> int:
        """Return the number of an integer; raise `malformed-ptx` for a float."""
        if value.kind in ("f32", "f64"):
            raise malformed("an integer is needed here, not a float", self.token.line)
        return int(value.number)

    def _applied(self, token: Token, value: _Value) -> _Value:
        """Return the value after a unary operator or a cast."""
        if token.text in ("-", "+"):
            if value.kind == "f32":  # ptxas refuses a sign here; nvcc's older listings have it
                return _Value("f32", int(value.number) ^ (0x80000000 if token.text == "-" else 0))
            if value.kind == "f64":
                return _Value("f64", -value.number if token.text == "-" else value.number)
            return _wrapped(value.kind, -int(value.number) if token.text == "-" else int(value.number))
        number = self._integer(value)
        if token.text == "!":
            return _Value("s64", int(not number))
        return _wrapped("u64", ~number) if token.text == "~" else _wrapped(token.text[1:], number)

    def _combined(self, sign: Token, left: _Value, right: _Value) -> _Value:
        """Return the value of a binary operator."""
        text = sign.text
        if "f32" in (left.kind, right.kind) or (left.kind == "f64") != (right.kind == "f64"):
            raise malformed(f"{text!r} stands between an integer and a float", sign.line)
        if text in ("/", "%") and not right.number:
            raise malformed("a constant is divided by zero", sign.line)
        if left.kind == "f64":
            if text in _COMPARISONS:
                return _Value("s64", int(_COMPARISONS[text](left.number, right.number)))
            if text not in _DOUBLES:
                raise malformed(f"{text!r} takes integers", sign.line)
            return _Value("f64", _DOUBLES[text](left.number, right.number))
        if text in ("&&", "||"):
            truth = (left.number and right.number) if text == "&&" else (left.number or right.number)
            return _Value("s64", int(bool(truth)))
        if text in ("<<", ">>"):
            count = int(right.number) & 63
            shifted = int(left.number) << count if text == "<<" else int(left.number) >> count
            return _wrapped(left.kind, shifted)
        kind = "u64" if "u64" in (left.kind, right.kind) or text == "%" else "s64"
        first, second = (int(_wrapped(kind, int(value.number)).number) for value in (left, right))
        if text in _COMPARISONS:
            return _Value("s64", int(_COMPARISONS[text](first, second)))
        if text in ("/", "%"):
            quotient = abs(first) // abs(second) * (1 if (first < 0) == (second < 0) else -1)
            return _wrapped(kind, quotient if text == "/" else first - quotient * second)
        return _wrapped(kind, _INTEGERS[text](first, second))


def _wrapped(kind: str, number: int) -> _Value:
    """Return an integer modulo 2^64, signed or unsigned."""
    number &= _MASK
    return _Value(kind, number - (1 << 64) if kind == "s64" and number >> 63 else number)


def unsigned_integer(token: Token) -> int:
    """Return the value of an integer token: 0x1F, 0b101, 017, 42, each perhaps followed by U."""
    digits = token.text.rstrip("U")
    try:
        octal = digits[0] == "0" and digits[1:2] not in ("x", "X", "b", "B")
        return int(digits, 8) if octal else int(digits, 0)
    except ValueError:
        raise malformed(f"{token.text!r} is not a number", token.line) from None
