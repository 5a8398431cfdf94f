"""Declarations of variables: state space, alignment, type, size, and initial value."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from refsim.ptx.text.constants import MAX_DEPTH, Constants
from refsim.ptx.text.lexer import Token, malformed
from refsim.ptx.text.syntax import Reference, Symbol, Variable

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
