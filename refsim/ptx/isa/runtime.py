"""Functions of the device runtime that have no body in any module: printf, assert. Inlining turns a call of such a
function into a statement, whose arguments and result are registers.

The text of printf comes from a format and a buffer of arguments, as C prints it. Each argument lies in the buffer at a
multiple of its size, 4 or 8 bytes: char and short are passed as int, float as double.
"""

import re
from dataclasses import dataclass

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.register_file import Mask, mask_of
from refsim.ptx.isa.definedness.bits import RuleOperands, defined
from refsim.ptx.isa.definedness.memory import ADDRESS, read
from refsim.ptx.isa.definedness.tracking import tracking_of
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import ITEM
from refsim.sources import CUDA_GUIDE

LONGEST = 1 << 16  # bytes of one text, a width or a precision
PRINTED = "a printed text"
# Conversions of C: flags, width, precision, length, letter. Other text is printed unchanged.
_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?"
    r"(?P<length>hh|h|ll|l|j|z|t|L)?(?P<letter>[diouxXeEfFgGaAcsp%])"
)
_WIDE_LENGTHS = ("l", "ll", "j", "z", "t")
_NARROW_LENGTHS = {"hh": 8, "h": 16}


def formatted(thread: Lanes, format: int, buffer: int) -> tuple[str, int]:
    """Return the text that one thread prints, and the number of arguments that it took; addresses are generic."""
    arguments, pieces, at = _Arguments(thread, buffer), [], 0
    text = text_at(thread, format)
    for found in _CONVERSION.finditer(text):
        pieces.append(text[at : found.start()])
        pieces.append(_converted(found, arguments))
        at = found.end()
    return "".join(pieces) + text[at:], arguments.taken


def text_at(thread: Lanes, address: int) -> str:
    """Return the bytes up to a zero, as UTF-8; at most 64 KiB."""
    found = bytearray()
    while len(found) < LONGEST and (byte := _item(thread, address + len(found), 1)):
        found.append(byte)
    return found.decode("utf-8", "replace")


def _item(thread: Lanes, address: int, width: int) -> int:
    """Return an unsigned integer in memory, and report uninitialized bits of it as reaching printed text."""
    where = np.array([address], np.uint64).view(np.int64)
    item = int(thread.load("generic", where, width).view(ITEM[width])[0])
    if thread.machine.tracking is not None and (undefined := read(thread, "generic", where, width, width)) is not None:
        bits, origin = undefined
        tracking_of(thread).reached(thread, mask_of(np.asarray(bits.any(axis=1)), origin[:, 0]), PRINTED)
    return item


@dataclass
class _Arguments:
    """The arguments of one call, taken one after another."""

    thread: Lanes
    address: int
    taken: int = 0

    def take(self, width: int) -> int:
        """Return the next argument of 4 or 8 bytes as unsigned bits."""
        start = -(-self.address // width) * width
        self.address, self.taken = start + width, self.taken + 1
        return _item(self.thread, start, width)

    def signed(self, width: int) -> int:
        """Return the next argument of `width` bytes as a signed integer."""
        bits = self.take(width)
        return bits - (1 << 8 * width) if bits >> (8 * width - 1) else bits

    def number(self, written: str | None) -> int | None:
        """Return a width or a precision: its digits, or an argument for `*`; None if there is none."""
        if written is None:
            return None
        value = self.signed(4) if written == "*" else int(written or 0)
        return max(-LONGEST, min(LONGEST, value))


def _converted(found: re.Match[str], arguments: _Arguments) -> str:
    """Return the text of one conversion specification, with its arguments taken."""
    letter, flags, length = found["letter"], found["flags"], found["length"] or ""
    if letter == "%":
        return "%"
    width = arguments.number(found["width"] or None)
    precision = arguments.number(found["precision"])
    if width is not None and width < 0:  # C: a negative width means the flag -
        width, flags = -width, flags + "-"
    if precision is not None and precision < 0:  # C: a negative precision means none
        precision = None
    sign = "+" if "+" in flags else " " if " " in flags else ""
    size = 8 if length in _WIDE_LENGTHS else 4
    zero_fills = "0" in flags
    if letter in "di":
        body = _integer(_narrowed(arguments.signed(size), length, is_signed=True), sign, "d", precision, flags)
        zero_fills &= precision is None
    elif letter in "ouxX":
        body = _integer(_narrowed(arguments.take(size), length, is_signed=False), "", letter, precision, flags)
        zero_fills &= precision is None
    elif letter in "eEfFgGaA":
        value = float(np.array([arguments.take(8)], np.uint64).view(np.float64)[0])
        body = _real(value, letter, precision, sign, "#" in flags)
        zero_fills &= bool(np.isfinite(value))
    elif letter == "c":
        body, zero_fills = chr(arguments.take(4) & 0xFF), False
    elif letter == "s":
        address = arguments.take(8)
        body, zero_fills = text_at(arguments.thread, address) if address else "(null)", False
        body = body if precision is None else body[:precision]
    else:
        address = arguments.take(8)
        body, zero_fills = f"{address:#x}" if address else "(nil)", False
    return _padded(body, width or 0, left="-" in flags, zeros=zero_fills)


def _narrowed(value: int, length: str, *, is_signed: bool) -> int:
    """Return the low bits of an int for the lengths hh and h, else the value unchanged."""
    bits = _NARROW_LENGTHS.get(length)
    if bits is None:
        return value
    value &= (1 << bits) - 1
    return value - (1 << bits) if is_signed and value >> (bits - 1) else value


def _integer(value: int, sign: str, base: str, precision: int | None, flags: str) -> str:
    digits = "" if value == 0 and precision == 0 else format(abs(value), "d" if base == "u" else base)
    digits = digits.rjust(precision or 0, "0")
    if "#" in flags and base == "o" and not digits.startswith("0"):
        digits = "0" + digits
    prefix = f"0{base}" if "#" in flags and base in "xX" and value else ""
    return ("-" if value < 0 else sign) + prefix + digits


def _real(value: float, letter: str, precision: int | None, sign: str, alternate: bool) -> str:
    """Return a double as C prints it: %a prints all digits of the value, other letters six unless a precision is
    given."""
    if letter not in "aA":
        text = format(value, f"{sign or '-'}{'#' if alternate else ''}.{6 if precision is None else precision}{letter}")
        return text
    if not np.isfinite(value):
        return format(value, f"{sign or '-'}{'F' if letter == 'A' else 'f'}")
    text = _hexadecimal(value, precision)
    text = text if text.startswith("-") else sign + text
    return text.upper() if letter == "A" else text


def _hexadecimal(value: float, precision: int | None) -> str:
    """Return a double as 0x1.8p+1: the fraction without trailing zeros, or rounded to `precision` digits."""
    bits = int(np.array([value], np.float64).view(np.uint64)[0])
    fraction, biased = bits & ((1 << 52) - 1), bits >> 52 & 0x7FF
    whole, exponent = (1, biased - 1023) if biased else (0, -1022 if fraction else 0)
    mantissa, digits = whole << 52 | fraction, 13
    if precision is not None and precision < 13:
        drop = 4 * (13 - precision)
        quotient, rest = divmod(mantissa, 1 << drop)
        half = 1 << (drop - 1)
        mantissa, digits = quotient + (rest > half or (rest == half and quotient & 1)), precision
    whole, fraction = divmod(mantissa, 1 << 4 * digits)
    spoken = f"{fraction:0{digits}x}" if digits else ""
    spoken = spoken.rstrip("0") if precision is None else spoken.ljust(precision, "0")
    return f"{'-' if bits >> 63 else ''}0x{whole}{'.' + spoken if spoken else ''}p{exponent:+d}"


def _padded(body: str, width: int, *, left: bool, zeros: bool) -> str:
    if left:
        return body.ljust(width)
    if not zeros:
        return body.rjust(width)
    head = re.match(r"[-+ ]?(?:0[xX])?", body)
    kept = head.end() if head else 0
    return body[:kept] + body[kept:].rjust(width - kept, "0")


def _addresses(operands: RuleOperands) -> list[Mask | None]:
    """Demand that all arguments are defined; return the masks of the results."""
    for mask in operands.masks:
        operands.demand(mask, ADDRESS)
    results: list[Mask | None] = defined(operands)
    return results


@instruction("call.vprintf d:b32, format:u64, buffer:u64", undefined=_addresses, source=CUDA_GUIDE["formatted output"])
def vprintf(lanes: Lanes, format: Array, buffer: Array) -> Array:
    """Record each thread's text in the launch; return the number of arguments that the text took."""
    counts = np.zeros(lanes.count, np.uint32)
    formats, buffers = lanes.full(format), lanes.full(buffer)
    for one, number in lanes.each():
        text, taken = formatted(one, int(formats[number]), int(buffers[number]))
        counts[number] = taken
        thread, block = lanes.machine.geometry.describe(int(one.ids[0])).split(" of ")
        lanes.machine.findings.printed.append((f"{block} {thread}", text))
    return counts


@instruction(
    "call.__assertfail message:u64, file:u64, line:u32, function:u64, size:u64",
    undefined=_addresses,
    source=CUDA_GUIDE["assertion"],
)
def assertion(lanes: Lanes, message: Array, file: Array, line: Array, function: Array, size: Array) -> None:
    """End the kernel because an assertion failed; the message is the first failing thread's."""
    one = Lanes(lanes.machine, lanes.ids[:1], lanes.statement)
    said, where, inside = (text_at(one, int(lanes.full(each)[0])) for each in (message, file, function))
    raise lanes.fault("trap", 0, f"{where}:{int(lanes.full(line)[0])}: {inside}: assertion `{said}` failed")
