"""Repairs of arithmetic: another rounding, one rounding more or less, contraction, subnormals, infinities and NaN.

Repairs of functions put an approximate quotient, reciprocal or root in place of a rounded one, or the reverse. A rule
takes a line and yields its possible new texts; the loader rejects opcodes that a target does not have.
"""

import re
from collections.abc import Iterator

from refsim.formats import FORMATS
from refsim.testing.suspects.limits import spelled
from refsim.testing.suspects.listing import REGISTER, ListedLine, PtxListing

FLOAT_REGISTERS = {"f32": "f32", "f64": "f64", "f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}
"""The floating-point types of PTX instructions, and the types of their registers."""
_ROUNDINGS = ("rn", "rz", "rm", "rp")
_WHOLE_ROUNDINGS = ("rni", "rzi", "rmi", "rpi")
_FLUSHABLE = frozenset(
    {"add", "sub", "mul", "fma", "div", "sqrt", "rcp", "min", "max", "abs", "neg", "ex2", "lg2", "rsqrt", "sin", "cos"}
)
_UNORDERED = {"lt": "ltu", "le": "leu", "gt": "gtu", "ge": "geu", "eq": "equ", "ne": "neu"}


_LIMITS = frozenset(
    spelled(sign * row.max_value) for row in FORMATS if row.has_nan or not row.has_infinity for sign in (1, -1)
)
"""The largest values of the formats as PTX constants: the limits of clamps."""
_KINDS = {"div": ("full", "approx", "rn"), "rcp": ("approx", "rn"), "sqrt": ("approx", "rn")}
_ONE = spelled(1.0)


def fma_as_mul_and_add(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield a multiplication and an addition, two roundings, for an fma."""
    if line.name != "fma" or line.words[-1] not in FLOAT_REGISTERS or len(line.operands) != 4:
        return
    kind = line.words[-1]
    d, a, b, c = line.operands
    rounding = [word for word in line.words[1:-1] if word != "sat"]
    product = ".".join(("mul", *rounding, kind))
    total = ".".join(("add", *line.words[1:-1], kind))
    yield line.reading(
        f".reg .{FLOAT_REGISTERS[kind]} %refsim", f"{product} %refsim, {a}, {b}", f"{total} {d}, %refsim, {c}"
    )


def mul_and_add_as_fma(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield an fma, one rounding, for an addition or subtraction of a product."""
    if line.name not in ("add", "sub") or line.words[-1] not in FLOAT_REGISTERS or len(line.operands) != 3:
        return
    kind = line.words[-1]
    d, x, y = line.operands
    words = [word for word in line.words[1:-1] if word != "rn"]
    fused = ".".join(("fma", *([] if any(word in _ROUNDINGS for word in words) else ["rn"]), *words, kind))
    declared = f".reg .{FLOAT_REGISTERS[kind]} %refsim"
    for product, other in ((x, y), (y, x)):
        made = listing.definition(product, line)
        if made is None or made.name != "mul" or made.words[-1] != kind:
            continue
        a, b = made.operands[1:]
        if line.name == "add":
            yield line.renamed(fused, d, a, b, other)
        elif product is x:
            yield line.reading(declared, f"neg.{kind} %refsim, {y}", f"{fused} {d}, {a}, {b}, %refsim")
        else:
            yield line.reading(declared, f"neg.{kind} %refsim, {a}", f"{fused} {d}, %refsim, {b}, {x}")


def other_rounding(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield the instruction with each other rounding."""
    for roundings in (_ROUNDINGS, _WHOLE_ROUNDINGS, ("rna", "rn", "rz")):
        for word in line.words[1:]:
            if word in roundings:
                yield from (line.renamed(line.worded(word, other)) for other in roundings if other != word)
                return


def subnormals_kept(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield the instruction without .ftz."""
    if "ftz" in line.words:
        yield line.renamed(line.worded("ftz"))


def subnormals_flushed(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield the instruction with .ftz."""
    if line.name in _FLUSHABLE and line.words[-1] == "f32" and "ftz" not in line.words:
        yield line.renamed(".".join((*line.words[:-1], "ftz", "f32")))


def infinity_other(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield a conversion with or without .satfinite, an instruction without .sat, and a clamp removed."""
    if "satfinite" in line.words or "sat" in line.words:
        yield line.renamed(line.worded("satfinite" if "satfinite" in line.words else "sat"))
    elif line.name == "cvt" and line.words[1] in _ROUNDINGS:
        yield line.renamed(".".join((*line.words[:2], "satfinite", *line.words[2:])))
    elif line.name in ("min", "max") and line.words[-1] == "f32":
        kept = [operand for operand in line.operands[1:] if listing.constant(operand).upper() not in _LIMITS]
        if len(kept) == 1:
            yield line.renamed("mov.f32", line.operands[0], kept[0])


def nan_other(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield min and max that return NaN or drop it, and comparisons that are true or false for a NaN."""
    if line.name in ("min", "max") and line.words[-1] in FLOAT_REGISTERS:
        if "NaN" in line.words:
            yield line.renamed(line.worded("NaN"))
        else:
            yield line.renamed(".".join((*line.words[:-1], "NaN", line.words[-1])))
    elif line.name == "setp" and line.words[-1] in FLOAT_REGISTERS:
        for ordered, unordered in _UNORDERED.items():
            if line.words[1] in (ordered, unordered):
                other = unordered if line.words[1] == ordered else ordered
                yield line.renamed(line.worded(line.words[1], other))


def upper_half_loaded(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield a rounded float32 for a load of its upper half, which truncates it to bfloat16."""
    found = _UPPER_HALF.fullmatch(line.operands[-1]) if line.name == "ld" and line.words[-1] in ("u16", "b16") else None
    if found is None or int(found[2]) % 4 != 2:
        return
    whole = f"ld.{'.'.join(line.words[1:-1])}.u32 %refsim, {found[1]}+{int(found[2]) - 2}]"
    lsb = (
        "shr.u32 %refsimodd, %refsim, 16",
        "and.b32 %refsimodd, %refsimodd, 1",
        "add.u32 %refsim, %refsim, %refsimodd",
    )
    narrowed = "cvt.u16.u32" if line.operands[0].startswith("%rs") else "mov.b32"
    for half in ((*lsb, "add.u32 %refsim, %refsim, 32767"), ("add.u32 %refsim, %refsim, 32768",)):
        shifted = ("shr.u32 %refsim, %refsim, 16", f"{narrowed} {line.operands[0]}, %refsim")
        yield line.reading(".reg .b32 %refsim, %refsimodd", whole, *half, *shifted)


def cut_bits(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield rounding to nearest for low bits of a float32 that are cut off by hand, and the reverse."""
    if line.words[0] == "shr" and line.words[-1] in ("u32", "b32", "s32") and line.operands[-1] in _DROPPED:
        kept = int(line.operands[-1])
    elif line.opcode == "and.b32" and (mask := listing.constant(line.operands[-1])) in _CUT:
        kept = _CUT[mask]
    else:
        return
    d, x, last = line.operands
    carry = ((1 << kept) - 1) >> 1
    to_even = (f"shr.u32 %refsim, {x}, {kept}", "and.b32 %refsim, %refsim, 1", f"add.u32 %refsim, %refsim, {x}")
    nearest = f"add.u32 %refsim, %refsim, {carry}"
    yield line.reading(".reg .b32 %refsim", *to_even, nearest, f"{line.opcode} {d}, %refsim, {last}")
    away = f"add.u32 %refsim, {x}, {carry + 1}"
    yield line.reading(".reg .b32 %refsim", away, f"{line.opcode} {d}, %refsim, {last}")
    made = listing.definition(x, line)
    if made is not None and made.name == "add" and listing.constant(made.operands[2]) in (str(carry), str(carry + 1)):
        yield line.renamed(line.opcode, d, made.operands[1], last)


_UPPER_HALF = re.compile(r"(\[.*)\+(-?\d+)\]")
_DROPPED = ("13", "16", "20", "21")
"""Bits of a float32 below the mantissas of float16, bfloat16, e4m3 and e5m2."""
_CUT = {str(-(1 << int(count))): int(count) for count in _DROPPED}


def half_added(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield rounding to nearest for a whole number made by adding one half and truncating."""
    if line.name == "cvt" and len(line.words) > 2 and line.words[1] in ("rzi", "rmi"):
        made = listing.definition(line.operands[1], line)
        if made is not None and made.name == "add" and listing.constant(made.operands[2]).upper() == spelled(0.5):
            yield line.renamed(line.worded(line.words[1], "rni"), line.operands[0], made.operands[1])


def _unpacked(listing: PtxListing, line: ListedLine) -> tuple[str, str] | None:
    """Return the two float32 registers, the upper first, whose packed pair a conversion reads; a constant 0 stays."""
    pair = listing.definition(line.operands[1], line)
    if pair is None:
        return None
    halves = pair.operands[1].strip("{} ").split(",")
    if pair.words == ("cvt", "u32", "u16"):
        halves.append("0")
    elif pair.name != "mov" or len(halves) != 2:
        return None
    found = []
    for half in reversed(halves):
        made = listing.definition(half.strip(), line)
        if made is not None and made.name == "cvt" and made.words[-2:] == ("f16", "f32"):
            found.append(made.operands[1])
        elif listing.constant(half.strip()) in ("0", "0x0000") or (
            made and made.name == "mov" and made.operands[1] == "0"
        ):
            found.append("0f00000000")
        else:
            return None
    return found[0], found[1]


def rounded_once(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield the wider original of a value that was narrowed and widened again, or a single conversion for two."""
    is_pair = line.name == "cvt" and line.words[-1] == "f16x2" and len(line.operands) == 2 and "x2" in line.words[-2]
    if is_pair and (values := _unpacked(listing, line)):
        yield line.renamed(".".join((*line.words[:-1], "f32")), line.operands[0], *values)
    if line.name == "cvt" and line.words[-1] in ("f16", "bf16", "f32", "f16x2") and len(line.operands) == 2:
        made = listing.definition(line.operands[1], line)
        if made is not None and made.name == "cvt" and made.words[-2] == line.words[-1]:
            wider = made.words[-1]
            if wider == "f64" if line.words[-1] == "f32" else wider != line.words[-2]:
                yield line.renamed(".".join((*line.words[:-1], wider)), line.operands[0], *made.operands[1:])
    widened = (line.name == "cvt" and line.words[-2] == "f32") or (
        line.name == "mov" and line.operands[0].startswith("%f")
    )
    if widened and (origin := _before_narrowing(listing, line)):
        yield line.renamed("mov.b32", line.operands[0], origin)


def rounded_as_float64(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield float64 arithmetic for a float32 operation whose result is narrowed, so that it is rounded once.

    Float64 holds the product of two float32 exactly; it rounds quotients and roots, which is close enough.
    """
    if (
        line.name != "cvt"
        or line.words[-1] != "f32"
        or line.words[-2] not in ("f16", "bf16")
        or len(line.operands) != 2
    ):
        return
    made = listing.definition(line.operands[1], line)
    if made is None or made.words[-1] != "f32" or made.name not in ("add", "sub", "mul", "fma", "div", "sqrt"):
        return
    values = made.operands[1:]
    names = [f"%refsim{number}" for number in range(len(values) + 1)]
    widened = [f"cvt.f64.f32 {name}, {value}" for name, value in zip(names[1:], values, strict=True)]
    opcode = f"{made.name}.rn.f64"
    narrowed = ".".join((*line.words[:-1], "f64"))
    yield line.reading(
        f".reg .f64 {', '.join(names)}",
        *widened,
        f"{opcode} {', '.join(names)}",
        f"{narrowed} {line.operands[0]}, {names[0]}",
    )


def _before_narrowing(listing: PtxListing, line: ListedLine) -> str:
    """Return the float32 register whose narrowed value a line widens, through moves and shifts; else ""."""
    upper = False
    while True:
        if line.name == "cvt" and line.words[-2] in ("f16", "bf16", "f16x2", "bf16x2") and line.words[-1] == "f32":
            return line.operands[1] if upper or len(line.operands) == 2 else line.operands[2]
        if line.name not in ("mov", "cvt", "shl", "and"):
            return ""
        upper = upper or line.name == "and"
        registers = REGISTER.findall(line.operands[1])
        made = listing.definition(registers[-1], line) if registers else None
        if made is None:
            return ""
        if made.operands[0].startswith("{"):
            upper = made.operands[0].rstrip("} ").endswith(registers[-1])
        line = made


def rounded_twice(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield a conversion of float32 to bfloat16 or float16 before it is narrowed further."""
    if line.name != "cvt" or line.words[-1] != "f32" or "rn" not in line.words:
        return
    d, *values = line.operands
    for through in ("bf16", "f16"):
        code: list[str] = []
        for number, value in enumerate(values):
            name = f"%refsim{number}"
            code += [f"cvt.rn.{through}.f32 %refsimh, {value}", f"cvt.f32.{through} {name}, %refsimh"]
        registers = ", ".join(f"%refsim{number}" for number in range(len(values)))
        declared = (".reg .b16 %refsimh", f".reg .f32 {registers}")
        yield line.reading(*declared, *code, f"{line.opcode} {d}, {registers}")


def computed_otherwise(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield other instructions for a quotient, a reciprocal or a root of float32.

    These are div, rcp and sqrt with another rounding, a quotient for a product with an approximate reciprocal, rsqrt
    for two roundings, and the reverse of each.
    """
    if line.words[-1] != "f32" or (line.name not in _KINDS and line.name not in ("mul", "rsqrt")):
        return
    flush = ".ftz" if "ftz" in line.words else ""
    yield from (
        line.renamed(f"{line.name}.{kind}{flush}.f32") for kind in _KINDS.get(line.name, ()) if kind not in line.words
    )
    d, x = line.operands[:2]
    if line.name == "div":
        reciprocal = f"rcp.approx{flush}.f32 %refsim, {line.operands[2]}"
        yield line.reading(".reg .f32 %refsim", reciprocal, f"mul.rn{flush}.f32 {d}, {x}, %refsim")
    elif line.name == "mul":
        for factor, other in ((x, line.operands[2]), (line.operands[2], x)):
            made = listing.definition(factor, line)
            if made is not None and made.name == "rcp" and made.words[-1] == "f32":
                kinds = (kind for kind in _KINDS["div"] if kind != "rn")  # scales.divided_otherwise yields rn
                yield from (line.renamed(f"div.{kind}{flush}.f32", d, other, made.operands[1]) for kind in kinds)
    elif line.name == "rsqrt":
        root = (f"cvt{flush}.f64.f32 %refsim, {x}", "sqrt.rn.f64 %refsim, %refsim", "rcp.rn.f64 %refsim, %refsim")
        one_nan = f"mul.rn.f32 {d}, {d}, 0f3F800000"  # the conversion would keep sign and payload of float64's NaN
        yield line.reading(".reg .f64 %refsim", *root, f"cvt.rn{flush}.f32.f64 {d}, %refsim", one_nan)
    root_of = _root_below(listing, line)
    if root_of:
        yield line.renamed(f"rsqrt.approx{flush}.f32", d, root_of)


def _root_below(listing: PtxListing, line: ListedLine) -> str:
    """Return the register whose square root a line divides 1 by; else ""."""
    is_quotient = line.name == "div" and listing.constant(line.operands[1]).upper() == _ONE
    if line.name != "rcp" and not is_quotient:
        return ""
    made = listing.definition(line.operands[-1], line)
    return made.operands[1] if made is not None and made.name == "sqrt" and made.words[-1] == "f32" else ""
