"""Declarations of variables: state space, alignment, type, size, initial bytes."""

from refsim.ptx.text.cursor import Cursor
from refsim.ptx.text.lexer import Token, malformed
from refsim.ptx.text.syntax import Variable

MAX_DEPTH = 64
MAX_VARIABLE_BYTES = 1 << 30
MAX_ALIGN = 1 << 16
SPACES = (".global", ".const", ".shared", ".local", ".param")


class Declarations(Cursor):
    """A cursor that reads declarations of variables."""

    def variables(self, external: bool = False, *, single: bool = False) -> list[Variable]:
        """The variables of one declaration; in a parameter list (`single`) a comma starts the next declaration."""
        space = self.take().text[1:]
        align, width, pointee = 0, 0, False
        while self.token.kind == "directive":
            directive = self.take()
            if directive.text == ".align":
                given = self.integer()
                if not 0 < given <= MAX_ALIGN or given & (given - 1):
                    raise malformed(f"alignment {given} is no power of two up to {MAX_ALIGN}", directive.line)
                # Behind .ptr it is the alignment of what the parameter points to, not of the parameter.
                align = align if pointee else given
            elif directive.text == ".ptr":
                pointee = True
            elif directive.text in (".v2", ".v4"):
                width = int(directive.text[2])
            elif directive.text not in (*SPACES, ".unified", ".managed", ".attribute"):
                width = max(width, 1) * type_bits(directive) // 8
        found = []
        while True:
            found.append(self.variable(space, max(width, 1), align, external))
            if single or not self.accept(","):
                break
        self.accept(";")
        return found

    def variable(self, space: str, width: int, align: int, external: bool) -> Variable:
        line, name, count = self.token.line, self.word(), 1
        while self.accept("["):
            count *= 0 if self.token.text == "]" else self.integer()
            self.expect("]")
        initial = None
        if self.accept("="):
            initial = self.initializer(width)
            if count == 0:
                count = len(initial) // width
        if not 0 <= count * width <= MAX_VARIABLE_BYTES:
            raise malformed(f"variable {name!r} of {count * width} bytes is beyond the limit", line)
        if initial is not None and len(initial) > count * width:
            raise malformed(f"variable {name!r} of {count * width} bytes has {len(initial)} initial ones", line)
        return Variable(
            name, space, count * width, max(align, width if width in (1, 2, 4, 8, 16) else 1), initial, external
        )

    def initializer(self, width: int) -> bytes:
        values, depth = bytearray(), 0
        while True:
            token = self.token
            if self.accept("{"):
                depth += 1
                if depth > MAX_DEPTH:
                    raise malformed("an initialiser is nested too deeply", token.line)
            elif self.accept("}"):
                depth -= 1
            elif not self.accept(","):
                operand = self.number()
                values += (operand.value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
            if depth == 0:
                return bytes(values)


def type_bits(token: Token) -> int:
    """The width of a register or variable type: .f16x2 has 32 bits, .pred counts as 1."""
    name = token.text[1:]
    if name == "pred":
        return 1
    digits = name.lstrip("bufs")
    widths = {"16x2": 32, "e4m3x2": 16, "texref": 64, "samplerref": 64, "surfref": 64}
    width = widths.get(digits) or widths.get(name) or (int(digits) if digits.isdigit() and len(digits) < 4 else 0)
    if width not in (8, 16, 32, 64, 128):
        raise malformed(f"{token.text!r} is not a type", token.line)
    return width
