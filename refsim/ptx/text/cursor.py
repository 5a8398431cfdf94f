"""A position in a list of tokens: take, expect, skip, and read numbers."""

import struct

from refsim.ptx.text.lexer import Token, malformed
from refsim.ptx.text.syntax import Immediate


class Cursor:
    """What a recursive descent needs of its tokens; every disappointment is `malformed-ptx` with its line."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.tokens[self.at]
        if token.kind == "end":
            raise malformed("the text ends in the middle of a statement", token.line)
        self.at += 1
        return token

    def accept(self, *texts: str) -> str | None:
        if self.token.kind != "string" and self.token.text in texts:
            return self.take().text
        return None

    def expect(self, text: str) -> None:
        if self.accept(text) is None:
            raise malformed(f"expected {text!r}, found {self.token.text or 'the end of the text'!r}", self.token.line)

    def word(self) -> str:
        token = self.take()
        if token.kind != "word":
            raise malformed(f"expected a name, found {token.text!r}", token.line)
        return token.text

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        token = self.take()
        if token.kind != "integer" or len(token.text) > 70:
            raise malformed(f"expected an integer, found {token.text[:80]!r}", token.line)
        return sign * int(token.text.rstrip("U"), 0) if token.text[0] != "0" else sign * _octal_or_prefixed(token)

    def number(self) -> Immediate:
        sign = -1 if self.accept("-") else 1
        token = self.token
        if token.kind == "integer":
            return Immediate(sign * self.integer())
        self.take()
        if token.kind != "float" or len(token.text) > 70:
            raise malformed(f"expected an operand, found {token.text[:80]!r}", token.line)
        if token.text[:2] in ("0f", "0F"):
            return Immediate(int(token.text[2:], 16) ^ (0x80000000 if sign < 0 else 0), "f32")
        bits = int(token.text[2:], 16) if token.text[:2] in ("0d", "0D") else _double_bits(token)
        return Immediate(bits ^ (1 << 63 if sign < 0 else 0), "f64")

    def skip_statement(self) -> None:
        while self.take().text != ";":
            pass

    def skip_braces(self) -> None:
        depth = 0
        while True:
            text = self.take().text
            depth += (text == "{") - (text == "}")
            if text == "}" and depth == 0:
                return


def _octal_or_prefixed(token: Token) -> int:
    digits = token.text.rstrip("U")
    try:
        return int(digits, 0) if digits[1:2] in ("x", "X", "b", "B") else int(digits, 8)
    except ValueError:
        raise malformed(f"{token.text!r} is not a number", token.line) from None


def _double_bits(token: Token) -> int:
    try:
        return int(struct.unpack("<Q", struct.pack("<d", float(token.text)))[0])
    except (ValueError, OverflowError):
        raise malformed(f"{token.text!r} is not a number", token.line) from None
