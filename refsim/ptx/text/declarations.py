"""Declarations of variables: state space, alignment, type, size, and initial value.

Constant expressions: 64-bit integers with or without sign, doubles, and floats spelled by their bits.

The rules are those of ptxas 13.0, tested by the values that it puts into variables. An integer is signed unless it ends
in U or does not fit. Two integers meet as unsigned if one of them is unsigned. `~` and `%` are unsigned. Comparisons
and `! && ||` give 0 or 1. A shift counts modulo 64 and keeps its left type. Integers and doubles never mix, and 0f...
may only stand alone."""

import operator
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from refsim.ptx.text.lexer import Token, malformed
from refsim.ptx.text.syntax import Immediate, Reference, Symbol, Variable

MAX_DEPTH = 64
WARP_SIZE = 32
_MASK = (1 << 64) - 1
_PRECEDENCE = {
    mark: level
    for level, marks in enumerate(("||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<< >>", "+ -", "* / %"), 1)
    for mark in marks.split()
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


MAX_VARIABLE_BYTES = 1 << 34
MAX_INITIAL_BYTES = 1 << 28  # the last byte that an initializer may give; zeros after it cost nothing
MAX_ALIGN = 1 << 16
SPACES = (".global", ".const", ".shared", ".local", ".param")
OPAQUE = ("texref", "samplerref", "surfref")
_WIDTHS = {"16x2": 32, "e4m3x2": 16, "texref": 64, "samplerref": 64, "surfref": 64}


@dataclass
class _Initial:
    """The bytes and addresses of an initializer while it is read."""

    type: str
    width: int
    values: bytearray = field(default_factory=bytearray)
    references: list[Reference] = field(default_factory=list)


@dataclass(frozen=True)
class _Kind:
    """The part of a declaration in front of the names."""

    space: str
    type: str
    width: int
    vector: int
    align: int
    is_pointer: bool

    def spelled(self, dimensions: Sequence[int]) -> str:
        """Return the type as people write it: f32, pointer, b8[12]."""
        return "pointer" if self.is_pointer else self.type + "".join(f"[{extent}]" for extent in dimensions)


class Declarations(Constants):
    """A cursor that reads declarations of variables."""

    def variables(self, external: bool = False, *, single: bool = False) -> list[Variable]:
        """Return the variables of one declaration; in a parameter list (`single`) a comma starts the next one."""
        kind = self.variable_kind()
        found = []
        while True:
            found.append(self.variable(kind, external))
            if single or not self.accept(","):
                break
        if not single:
            self.accept(";")
        return found

    def variable_kind(self) -> _Kind:
        """Return space, alignment, vector length and type; drop hints such as .ptr and .attribute."""
        space = self.take().text[1:]
        type, width, vector, align, pointee = "", 1, 1, 0, False
        while self.token.kind == "directive":
            directive = self.take()
            if directive.text == ".align":
                given = self.alignment(directive)
                # After .ptr it is the alignment of the pointer's target, not of the parameter.
                align = align if pointee else given
            elif directive.text == ".ptr":
                pointee = True
            elif directive.text in (".v2", ".v4"):
                vector = int(directive.text[2])
            elif directive.text == ".attribute":
                self.skip_group("(", ")")
            elif directive.text not in SPACES:
                type, width = directive.text[1:], max(1, type_bits(directive) // 8)
        if not type:
            raise malformed(
                f"a .{space} variable is declared without a type before {self.token.text!r}", self.token.line
            )
        return _Kind(space, type, width, vector, align, pointee)

    def alignment(self, directive: Token) -> int:
        """Return the alignment that stands here; raise `malformed-ptx` unless it is a power of two."""
        given = self.integer_constant()
        if not 0 < given <= MAX_ALIGN or given & (given - 1):
            raise malformed(f"alignment {given} is no power of two up to {MAX_ALIGN}", directive.line)
        return given

    def variable(self, kind: _Kind, external: bool) -> Variable:
        """Return one variable with its dimensions and its initial value."""
        line, name = self.token.line, self.word()
        dimensions: list[int] = []
        while self.accept("["):
            dimensions.append(0 if self.token.text == "]" else self.integer_constant())
            self.expect("]")
        element, initial = kind.width * kind.vector, None
        has_initial = self.accept("=") is not None
        if has_initial and kind.type in OPAQUE:
            self.skip_group("{", "}")  # properties of a sampler or a texture, which no instruction here reads
        elif has_initial:
            shape = [*dimensions, *([kind.vector] if kind.vector > 1 else [])]
            initial = self.initializer(_Initial(kind.type, kind.width), shape)
            if dimensions and dimensions[0] == 0:
                inner = element * _product(dimensions[1:])
                dimensions[0] = -(-len(initial.values) // max(inner, 1))
        size = element * _product(dimensions)
        if not 0 <= size <= MAX_VARIABLE_BYTES:
            raise malformed(f"variable {name!r} of {size} bytes is beyond the limit", line)
        if initial is not None and len(initial.values) > size:
            raise malformed(f"variable {name!r} of {size} bytes has {len(initial.values)} initial ones", line)
        natural = element if element in (1, 2, 4, 8, 16) else 1
        return Variable(
            name,
            kind.space,
            size,
            max(kind.align, natural),
            bytes(initial.values) if initial else None,
            external,
            tuple(initial.references) if initial else (),
            element,
            kind.spelled(dimensions),
        )

    # ---- initializers
    def initializer(self, initial: _Initial, shape: Sequence[int]) -> _Initial:
        """Read the values of a variable: one value, or braces that follow the dimensions. An empty first dimension is
        as long as needed."""
        if len(shape) > MAX_DEPTH:
            raise malformed(f"a variable of {len(shape)} dimensions", self.token.line)
        if self.token.text == "{":
            self.nested(initial, shape or (1,), 0)
        else:
            self.value(initial, 0)
        return initial

    def nested(self, initial: _Initial, shape: Sequence[int], start: int) -> None:
        """Read one pair of braces, whose first element is number `start`; an inner pair begins the next row."""
        line, stride, at = self.token.line, _product(shape[1:]), 0
        self.expect("{")
        while not self.accept("}"):
            if self.token.text == "{":
                if len(shape) < 2:
                    raise malformed("an initializer is nested deeper than its variable", line)
                at = -(-at // stride) * stride if stride else 0
                self.nested(initial, shape[1:], start + at)
                at += stride
            else:
                self.value(initial, start + at)
                at += 1
            if self.token.text != "}":
                self.expect(",")
        if shape[0] and at > shape[0] * stride:
            raise malformed(f"{at} initial values for {shape[0] * stride}", line)

    def value(self, initial: _Initial, index: int) -> None:
        """Read one element: a constant, an address, or a part of an address such as 0xff00(name)."""
        token, offset = self.token, index * initial.width
        if offset + initial.width > MAX_INITIAL_BYTES:
            raise malformed(f"an initializer reaches byte {offset}, beyond {MAX_INITIAL_BYTES}", token.line)
        initial.values.extend(bytes(max(0, offset + initial.width - len(initial.values))))
        if token.kind == "word" and token.text != "WARP_SZ":
            initial.references.append(Reference(offset, initial.width, self.address_constant()))
            return
        given = self.constant()
        if self.accept("("):
            self.expect_mask(given.value, token)
            shift = (given.value & -given.value).bit_length() - 1
            initial.references.append(Reference(offset, initial.width, self.address_constant(), shift))
            self.expect(")")
            return
        bits = _element_bits(given.value, given.kind, initial, token)
        initial.values[offset : offset + initial.width] = bits.to_bytes(initial.width, "little")

    def expect_mask(self, mask: int, token: Token) -> None:
        """Raise `malformed-ptx` unless a mask selects one whole byte of an address."""
        if mask not in [0xFF << shift for shift in range(0, 64, 8)]:
            raise malformed(f"{token.text!r} picks no byte of an address", token.line)

    def address_constant(self) -> Symbol:
        """Return `name`, `name+8`, `generic(name)` or `generic(name)+8`; addresses of globals are generic."""
        name = self.word()
        if name == "generic" and self.token.text == "(":
            self.take()
            inner = self.address_constant()
            self.expect(")")
            return Symbol(inner.name, inner.offset + self.offset_behind())
        return Symbol(self.variable_named(name), self.offset_behind())

    def offset_behind(self) -> int:
        """Return the constant after an address: `+8`, `-4`, or 0 if there is none."""
        if self.token.text not in ("+", "-"):
            return 0
        line = self.token.line
        self.accept("+")
        offset = self.integer_constant()
        if not -(1 << 32) < offset < 1 << 32:
            raise malformed(f"offset {offset} is beyond 32 bits", line)
        return offset

    def variable_named(self, name: str) -> str:
        """Return the unique name of a variable; at module level that is its own name."""
        return name


def _element_bits(value: int, kind: str, initial: _Initial, token: Token) -> int:
    """Return the bits of one constant in a variable: doubles become floats in .f32 and .b32, integers are truncated."""
    if kind == "int":
        if initial.type[0] == "f":
            raise malformed(f"{token.text!r} initializes a variable of type {initial.type}", token.line)
        return value & ((1 << 8 * initial.width) - 1)
    if initial.type not in ("f32", "f64", "b32", "b64"):
        raise malformed(f"{token.text!r} initializes a variable of type {initial.type}", token.line)
    if kind == "f32" or initial.width == 8:
        return value
    with np.errstate(over="ignore"):
        single = np.float32(struct.unpack("<d", value.to_bytes(8, "little"))[0])
    return int.from_bytes(single.tobytes(), "little")


def _product(dimensions: Sequence[int]) -> int:
    """Return the product of dimensions, 1 without any."""
    product = 1
    for dimension in dimensions:
        product *= dimension
    return product


def type_bits(token: Token) -> int:
    """Return the width of a register or variable type: .f16x2 has 32 bits, .pred counts as 1."""
    name = token.text[1:]
    if name == "pred":
        return 1
    digits = name.lstrip("bufs")
    width = _WIDTHS.get(digits) or _WIDTHS.get(name) or (int(digits) if digits.isdigit() and len(digits) < 4 else 0)
    if width not in (8, 16, 32, 64, 128):
        raise malformed(f"{token.text!r} is not a type", token.line)
    return width
