"""The scalar instructions whose meaning is recorded on silicon: one form each, generated from a few families.

A form is an opcode with its operand kinds; refsim.silicon.scalar_probe puts the kernel around it and chooses operands.
`ptx()` is the module that a GPU ran; the simulator runs the same text.
"""

from collections.abc import Iterator
from itertools import product

from refsim.silicon.scalar_probe import ScalarForm, kind_bits, probe_module

ROUNDINGS = ("rn", "rz", "rm", "rp")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def integer(type_name: str) -> str:
    """The operand kind of an integer or bit type: s32, u32 and b32 are all u32."""
    bits = int(type_name.removesuffix("x2")[1:])
    return f"u{bits * 2 if type_name.endswith('x2') else bits}"


def kind(type_name: str) -> str:
    """The operand kind of a PTX type; 8-bit integers stand in the low byte of a 32-bit register."""
    if type_name in ("s8", "u8"):
        return "u32"
    return integer(type_name) if type_name[0] in "sub" and type_name[1].isdigit() else type_name


def form(opcode: str, types: str, result: int | None = None, *, suffix: str = "") -> ScalarForm:
    """`opcode %d, %a, %b ...`: types are PTX types or kinds, one per operand; the result is as wide as the first."""
    kinds = tuple(kind(name) for name in types.split())
    operands = ", ".join(["%d", *(f"%{name}" for name in "abce"[: len(kinds)])])
    return ScalarForm(f"{opcode}{suffix}", kinds, result or kind_bits(kinds[0]), f"{opcode} {operands}{suffix};")


def variants(stem: str, *flags: tuple[str, ...]) -> list[str]:
    """Every choice of flags behind a stem: variants("add", ("rn", "rz"), ("", "ftz")) gives add.rn, add.rn.ftz ..."""
    return [".".join([stem, *(flag for flag in choice if flag)]) for choice in product(*flags)]


def single_precision() -> Iterator[ScalarForm]:
    """float32 arithmetic in every rounding, with .ftz and .sat."""
    flush, saturate = ("", "ftz"), ("", "sat")
    for name in ("add", "sub", "mul"):
        for opcode in [*variants(name, ROUNDINGS, flush, saturate), *variants(name, flush, saturate)]:
            yield form(f"{opcode}.f32", "f32 f32")
    for opcode in variants("fma", ROUNDINGS, flush, saturate):
        yield form(f"{opcode}.f32", "f32 f32 f32")
    for opcode in variants("div", ROUNDINGS, flush):
        yield form(f"{opcode}.f32", "f32 f32")
    for opcode in [*variants("rcp", ROUNDINGS, flush), *variants("sqrt", ROUNDINGS, flush)]:
        yield form(f"{opcode}.f32", "f32")
    for opcode in [*variants("abs", flush), *variants("neg", flush)]:
        yield form(f"{opcode}.f32", "f32")
    yield form("copysign.f32", "f32 f32")


def double_precision() -> Iterator[ScalarForm]:
    """float64 arithmetic in every rounding."""
    for name, rounding in product(("add", "sub", "mul", "div"), ROUNDINGS):
        yield form(f"{name}.{rounding}.f64", "f64 f64")
    for rounding in ROUNDINGS:
        yield form(f"fma.{rounding}.f64", "f64 f64 f64")
        yield form(f"rcp.{rounding}.f64", "f64")
        yield form(f"sqrt.{rounding}.f64", "f64")
    for name in ("min", "max", "copysign"):
        yield form(f"{name}.f64", "f64 f64")
    for name in ("abs", "neg"):
        yield form(f"{name}.f64", "f64")


def half_precision() -> Iterator[ScalarForm]:
    """f16 and bf16 arithmetic, alone and in pairs."""
    for types in ("f16", "f16x2"):
        for name in ("add", "sub", "mul"):
            for opcode in [*variants(name, ("rn",), ("", "ftz"), ("", "sat")), f"{name}"]:
                yield form(f"{opcode}.{types}", f"{types} {types}")
        for opcode in variants("fma.rn", ("", "ftz"), ("", "sat", "relu")):
            yield form(f"{opcode}.{types}", f"{types} {types} {types}")
        for opcode in [*variants("abs", ("", "ftz")), *variants("neg", ("", "ftz"))]:
            yield form(f"{opcode}.{types}", types)
        yield form(f"fma.rn.oob.{types}", f"{types} {types} {types}")
    for types in ("bf16", "bf16x2"):
        for opcode in ("add", "add.rn", "sub", "sub.rn", "mul", "mul.rn"):
            yield form(f"{opcode}.{types}", f"{types} {types}")
        for opcode in ("fma.rn", "fma.rn.relu", "fma.rn.oob", "fma.rn.oob.relu"):
            yield form(f"{opcode}.{types}", f"{types} {types} {types}")
        for opcode in ("abs", "neg"):
            yield form(f"{opcode}.{types}", types)


def extremes() -> Iterator[ScalarForm]:
    """min and max of floats with .ftz, .NaN and .xorsign.abs; of integers with .relu."""
    for name, types in product(("min", "max"), ("f32", "f16", "f16x2", "bf16", "bf16x2")):
        for opcode in variants(name, ("", "ftz") if types[0] == "f" else ("",), ("", "NaN"), ("", "xorsign.abs")):
            yield form(f"{opcode}.{types}", f"{types} {types}")
    for name, types in product(("min", "max"), ("s16", "u16", "s32", "u32", "s64", "u64", "s16x2", "u16x2")):
        yield form(f"{name}.{types}", f"{types} {types}")
    for name, types in product(("min", "max"), ("s32", "s16x2")):
        yield form(f"{name}.relu.{types}", f"{types} {types}")


def approximate() -> Iterator[ScalarForm]:
    """Instructions whose result the ISA leaves open within a bound: recorded for reference, not for equality."""
    for name in ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos"):
        for opcode in variants(f"{name}.approx", ("", "ftz")):
            yield form(f"{opcode}.f32", "f32")
    for opcode in variants("div.approx", ("", "ftz")) + variants("div.full", ("", "ftz")):
        yield form(f"{opcode}.f32", "f32 f32")
    for opcode, types in (
        ("tanh.approx", "f32"),
        ("tanh.approx", "f16"),
        ("tanh.approx", "f16x2"),
        ("tanh.approx", "bf16"),
        ("tanh.approx", "bf16x2"),
        ("ex2.approx", "f16"),
        ("ex2.approx", "f16x2"),
        ("ex2.approx.ftz", "bf16"),
        ("ex2.approx.ftz", "bf16x2"),
        ("rcp.approx.ftz", "f64"),
        ("rsqrt.approx", "f64"),
        ("rsqrt.approx.ftz", "f64"),
    ):
        yield form(f"{opcode}.{types}", types)


def conversions() -> Iterator[ScalarForm]:
    """cvt between integers and floats, all pairs and roundings."""
    widths = {"8": 32, "16": 16, "32": 32, "64": 64}
    integers = [f"{sign}{bits}" for bits, sign in product(widths, "su")]
    for to, source in product(integers, integers):
        for opcode in ("cvt", "cvt.sat"):
            if to != source and not (opcode == "cvt.sat" and _holds(to, source)):
                yield form(f"{opcode}.{to}.{source}", source, widths[to[1:]])
    floats = ("f16", "bf16", "f32", "f64")
    mixed = [(to, source) for to, source in product(integers, floats) if to[1:] != "8" or source != "bf16"]
    for to, source in mixed:
        for rounding in ("rni", "rzi", "rmi", "rpi"):
            yield form(f"cvt.{rounding}.{to}.{source}", source, widths[to[1:]])
    for source, to in mixed:
        for rounding in ROUNDINGS:
            yield form(f"cvt.{rounding}.{to}.{source}", source, kind_bits(to))
    for to in ("s16", "u16"):
        yield form(f"cvt.pack.sat.{to}.s32", "s32 s32")
    for to in ("s8", "u8", "s4", "u4", "s2", "u2"):
        yield form(f"cvt.pack.sat.{to}.s32.b32", "s32 s32 b32")


def float_conversions() -> Iterator[ScalarForm]:
    """cvt from float to float; from float32 to narrow floats it is recorded exhaustively elsewhere."""
    for rounding, flags in product(ROUNDINGS, ("", ".ftz", ".sat", ".ftz.sat")):
        yield form(f"cvt.{rounding}{flags}.f32.f64", "f64", 32)
    for rounding in ROUNDINGS:
        yield form(f"cvt.{rounding}.f16.f64", "f64", 16)
        yield form(f"cvt.{rounding}.bf16.f64", "f64", 16)
    for to, source in (("f32", "f16"), ("f32", "bf16"), ("f64", "f16"), ("f64", "bf16"), ("f64", "f32")):
        yield form(f"cvt.{to}.{source}", source, kind_bits(to))
    yield form("cvt.ftz.f32.f16", "f16", 32)
    yield form("cvt.sat.f32.f16", "f16", 32)
    yield form("cvt.ftz.f64.f32", "f32", 64)
    yield form("cvt.sat.f16.f16", "f16")
    for source, rounding in product(("f16", "bf16", "f32", "f64"), ("rni", "rzi", "rmi", "rpi")):
        yield form(f"cvt.{rounding}.{source}.{source}", source)
    for rounding in ("rn", "rz", "rm", "rp"):
        yield form(f"cvt.{rounding}.bf16.f16", "f16")
        yield form(f"cvt.{rounding}.f16.bf16", "bf16")


def _holds(to: str, source: str) -> bool:
    """Whether every value of one integer type is a value of the other, so that .sat has nothing to do."""
    wider = int(to[1:]) > int(source[1:])
    return wider and (to[0] == source[0] or source[0] == "u")


def comparisons() -> Iterator[ScalarForm]:
    """setp, set, slct, selp and testp."""

    def predicate(opcode: str, types: str) -> ScalarForm:
        kinds = (kind(types), kind(types))
        return ScalarForm(opcode, kinds, 32, f"{opcode} %p, %a, %b;\nselp.u32 %d, 1, 0, %p;")

    for types, test in product(("f32", "f64", "f16", "bf16"), (*COMPARISONS, *UNORDERED)):
        yield predicate(f"setp.{test}.{types}", types)
        if types in ("f32", "f16"):
            yield predicate(f"setp.{test}.ftz.{types}", types)
    for types, test in product(("s16", "s32", "s64", "u16", "u32", "u64"), COMPARISONS):
        yield predicate(f"setp.{test}.{types}", types)
    for types, test in product(("u32", "u64"), ("lo", "ls", "hi", "hs")):
        yield predicate(f"setp.{test}.{types}", types)
    for types, test in product(("b16", "b32", "b64"), ("eq", "ne")):
        yield predicate(f"setp.{test}.{types}", types)
    for types, join in product(("f32", "s32"), ("and", "or", "xor")):
        opcode = f"setp.lt.{join}.{types}"
        text = f"setp.gt.s32 %guard, %c, 3;\n{opcode} %p|%q, %a, %b, %guard;"
        text += "\nselp.u32 %d, 1, 0, %p;\nselp.u32 %x, 2, 0, %q;\nadd.u32 %d, %d, %x;"
        yield ScalarForm(f"{opcode} p|q", (kind(types), kind(types), "u32"), 32, text)
    for types in ("f16x2", "bf16x2"):
        for test in ("lt", "geu", "nan"):
            opcode = f"setp.{test}.{types}"
            text = f"{opcode} %p|%q, %a, %b;\nselp.u32 %d, 1, 0, %p;\nselp.u32 %x, 2, 0, %q;\nadd.u32 %d, %d, %x;"
            yield ScalarForm(f"{opcode} p|q", (types, types), 32, text)
    for to, types in product(("f32", "u32", "s32"), ("f32", "s32", "u32", "f64")):
        yield form(f"set.lt.{to}.{types}", f"{types} {types}", 32)
    for types in ("f16x2", "bf16x2"):
        yield form(f"set.gtu.{types}.{types}", f"{types} {types}")
        yield form(f"set.le.u32.{types}", f"{types} {types}", 32)
    for types, control in product(("b32", "f32", "u64"), ("s32", "f32")):
        yield form(f"slct.{types}.{control}", f"{types} {types} {control}")
    for test, types in product(("finite", "infinite", "number", "notanumber", "normal", "subnormal"), ("f32", "f64")):
        yield ScalarForm(f"testp.{test}.{types}", (types,), 32, f"testp.{test}.{types} %p, %a;\nselp.u32 %d, 1, 0, %p;")


def integer_arithmetic() -> Iterator[ScalarForm]:
    """add to rem, with .lo, .hi, .wide and .sat, and the 24-bit and dot-product forms."""
    types = ("s16", "u16", "s32", "u32", "s64", "u64")
    for name, t in product(("add", "sub", "mul.lo", "mul.hi", "div", "rem"), types):
        yield form(f"{name}.{t}", f"{t} {t}")
    for name, t in product(("mad.lo", "mad.hi", "sad"), types):
        yield form(f"{name}.{t}", f"{t} {t} {t}")
    for t, wide in (("s16", "s32"), ("u16", "u32"), ("s32", "s64"), ("u32", "u64")):
        bits = kind_bits(kind(wide))
        yield form(f"mul.wide.{t}", f"{t} {t}", bits)
        yield form(f"mad.wide.{t}", f"{t} {t} {wide}", bits)
    for name in ("add.sat", "sub.sat"):
        yield form(f"{name}.s32", "s32 s32")
    yield form("mad.hi.sat.s32", "s32 s32 s32")
    for t in ("s16x2", "u16x2"):
        yield form(f"add.{t}", f"{t} {t}")
    for t, half in product(("s32", "u32"), ("lo", "hi")):
        yield form(f"mul24.{half}.{t}", f"{t} {t}")
        yield form(f"mad24.{half}.{t}", f"{t} {t} {t}")
    yield form("mad24.hi.sat.s32", "s32 s32 s32")
    for name, t in product(("abs", "neg"), ("s16", "s32", "s64")):
        yield form(f"{name}.{t}", t)
    for first, second in product(("s32", "u32"), ("s32", "u32")):
        yield form(f"dp4a.{first}.{second}", f"{first} {second} s32")
        for half in ("lo", "hi"):
            yield form(f"dp2a.{half}.{first}.{second}", f"{first} {second} s32")


def carries() -> Iterator[ScalarForm]:
    """Chains through the carry flag: operands are the 64-bit halves, the result is sum and last carry."""
    unpack = ".reg .b32 %lo_a, %hi_a, %lo_b, %hi_b, %lo, %hi;\nmov.b64 {%lo_a, %hi_a}, %a;\nmov.b64 {%lo_b, %hi_b}, %b;"
    for first, second in (("add.cc", "addc"), ("sub.cc", "subc"), ("mad.lo.cc", "madc.hi")):
        for t in ("u32", "s32"):
            low, high = "%lo_a, %lo_b", "%hi_a, %hi_b"
            if first.startswith("mad"):
                low, high = "%lo_a, %lo_b, %hi_a", "%lo_a, %lo_b, %hi_b"
            text = f"{unpack}\n{first}.{t} %lo, {low};\n{second}.{t} %hi, {high};"
            yield ScalarForm(f"{first}.{t} + {second}.{t}", ("u64", "u64"), 64, f"{text}\nmov.b64 %d, {{%lo, %hi}};")
    for first, second, last in (("add.cc", "addc.cc", "addc"), ("sub.cc", "subc.cc", "subc")):
        text = f"{unpack}\n{first}.u32 %lo, %lo_a, %lo_b;\n{second}.u32 %hi, %hi_a, %hi_b;\n{last}.u32 %x, 0, 0;"
        yield ScalarForm(
            f"{first} + {second} + {last}.u32",
            ("u64", "u64"),
            32,
            f"{text}\nxor.b32 %d, %x, %lo;\nxor.b32 %d, %d, %hi;",
        )
    yield ScalarForm(
        "add.cc.u64 + addc.u64", ("u64", "u64", "u64"), 64, "add.cc.u64 %wide, %a, %b;\naddc.u64 %d, %c, %a;"
    )
    yield ScalarForm(
        "sub.cc.u64 + subc.u64", ("u64", "u64", "u64"), 64, "sub.cc.u64 %wide, %a, %b;\nsubc.u64 %d, %c, %a;"
    )


def bit_arithmetic() -> Iterator[ScalarForm]:
    """Logic, shifts, fields, permutations and counts, with positions and lengths beyond the register."""
    for name, bits in product(("and", "or", "xor"), ("b16", "b32", "b64")):
        yield form(f"{name}.{bits}", f"{bits} {bits}")
    for name, bits in product(("not", "cnot"), ("b16", "b32", "b64")):
        yield form(f"{name}.{bits}", bits)
    for opcode, bits in product(("shl.b", "shr.u", "shr.s"), ("16", "32", "64")):
        yield form(f"{opcode}{bits}", f"b{bits} shift")
    for side, mode in product("lr", ("clamp", "wrap")):
        yield form(f"shf.{side}.{mode}.b32", "b32 b32 shift")
    for t in ("u32", "s32", "u64", "s64"):
        yield form(f"bfe.{t}", f"{t} shift shift")
        yield form(f"bfind.{t}", t, 32)
        yield form(f"bfind.shiftamt.{t}", t, 32)
    for t in ("b32", "b64"):
        yield form(f"bfi.{t}", f"{t} {t} shift shift")
        yield form(f"popc.{t}", t, 32)
        yield form(f"clz.{t}", t, 32)
        yield form(f"brev.{t}", t)
    for mode in ("clamp", "wrap"):
        yield form(f"bmsk.{mode}.b32", "shift shift")
        for t in ("u32", "s32"):
            yield form(f"szext.{mode}.{t}", f"{t} shift")
    yield form("fns.b32", "b32 shift u32")
    for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"):
        yield form(f"prmt.b32{mode}", "b32 b32 b32")
    for table in (0x01, 0x1B, 0x3C, 0x96, 0xCA, 0xE8, 0xF8, 0xFE):
        yield form("lop3.b32", "b32 b32 b32", suffix=f", {table:#04x}")


def across_lanes() -> Iterator[ScalarForm]:
    """Instructions across the 32 lanes of a full warp; rows 32 w to 32 w + 31 are one warp."""
    for mode in ("up", "down", "bfly", "idx"):
        text = (
            f"shfl.sync.{mode}.b32 %d|%p, %a, %b, %c, 0xffffffff;\nselp.u32 %x, 0x80000000, 0, %p;\nxor.b32 %d, %d, %x;"
        )
        yield ScalarForm(f"shfl.sync.{mode}.b32 d|p", ("u32", "shift", "shift"), 32, text)
    for name in ("add", "min", "max"):
        for t in ("s32", "u32"):
            yield ScalarForm(f"redux.sync.{name}.{t}", ("u32",), 32, f"redux.sync.{name}.{t} %d, %a, 0xffffffff;")
    for name in ("and", "or", "xor"):
        yield ScalarForm(f"redux.sync.{name}.b32", ("u32",), 32, f"redux.sync.{name}.b32 %d, %a, 0xffffffff;")
    for mode in ("all", "any", "uni"):
        text = f"setp.gt.u32 %p, %a, 7;\nvote.sync.{mode}.pred %q, %p, 0xffffffff;\nselp.u32 %d, 1, 0, %q;"
        yield ScalarForm(f"vote.sync.{mode}.pred", ("u32",), 32, text)
    text = "setp.gt.u32 %p, %a, 7;\nvote.sync.ballot.b32 %d, %p, 0xffffffff;"
    yield ScalarForm("vote.sync.ballot.b32", ("u32",), 32, text)
    yield ScalarForm("match.any.sync.b32", ("shift",), 32, "match.any.sync.b32 %d, %a, 0xffffffff;")
    text = "match.all.sync.b32 %d|%p, %a, 0xffffffff;\nselp.u32 %x, 1, 0, %p;\nxor.b32 %d, %d, %x;"
    yield ScalarForm("match.all.sync.b32 d|p", ("shift",), 32, text)


def memory() -> Iterator[ScalarForm]:
    """Narrow loads and stores through the row's own memory, and atomics on global and shared memory."""
    for bits, sign, width in product(("8", "16", "32"), "su", (32, 64)):
        if int(bits) < width:
            text = f"st.global.b{width} [%cell], %a;\nld.global.{sign}{bits} %d, [%cell];"
            yield ScalarForm(f"ld.global.{sign}{bits} into .b{width}", (f"u{width}",), width, text)
    for bits, width in (("8", 32), ("16", 32), ("8", 64), ("32", 64)):
        text = f"st.global.b{width} [%cell], %b;\nst.global.b{bits} [%cell], %a;\nld.global.b{width} %d, [%cell];"
        yield ScalarForm(f"st.global.b{bits} from .b{width}", (f"u{width}", f"u{width}"), width, text)
    integers = [f"{name}.{t}" for name, t in product(("min", "max"), ("u32", "s32", "u64", "s64"))]
    integers += [f"{name}.{t}" for name, t in product(("and", "or", "xor", "exch"), ("b32", "b64"))]
    integers += ["add.u32", "add.s32", "add.u64", "inc.u32", "dec.u32"]
    floats = ["add.f32", "add.f64", "add.noftz.f16", "add.noftz.f16x2", "add.noftz.bf16", "add.noftz.bf16x2"]
    for space, operation in product(("global", "shared"), integers + floats):
        types = operation.rsplit(".", maxsplit=1)[1]
        yield atomic(space, operation, (kind(types), kind(types)), "%b")
    for space, bits in product(("global", "shared"), ("b32", "b64")):
        yield atomic(space, f"cas.{bits}", (kind(bits), kind(bits), kind(bits)), "%b, %c")


def atomic(space: str, operation: str, kinds: tuple[str, ...], operands: str) -> ScalarForm:
    """The word a, changed by an atomic; the result is what memory holds then, spoilt if the old value was not a."""
    bits = kind_bits(kinds[0])
    old = {16: "%h", 32: "%x", 64: "%wide"}[bits]
    text = ".reg .b16 %h;\n" if bits == 16 else ""
    place = "%cell"
    if space == "shared":
        text += ".shared .align 8 .b8 cells[2048];\nmov.u32 %x, %tid.x;\nshl.b32 %x, %x, 3;\n"
        text += "mov.u32 %y, cells;\nadd.u32 %y, %y, %x;\n"
        place = "%y"
    text += f"st.{space}.b{bits} [{place}], %a;\natom.{space}.{operation} {old}, [{place}], {operands};\n"
    text += f"ld.{space}.b{bits} %d, [{place}];\nxor.b{bits} {old}, {old}, %a;\nxor.b{bits} %d, %d, {old};"
    return ScalarForm(f"atom.{space}.{operation}", kinds, bits, text)


def combinations() -> Iterator[ScalarForm]:
    """Two instructions that the assembler may fuse: a product and a sum without .rn, a sign change and bit logic."""
    for opcode, types in product(("abs", "neg"), ("f32", "f16", "bf16")):
        bits = kind_bits(types)
        text = f"{opcode}.{types} %d, %a;\nxor.b{bits} %d, %d, %b;"
        yield ScalarForm(f"{opcode}.{types} + xor.b{bits}", (types, f"u{bits}"), bits, text)
    text = "mov.b32 %x, 0;\nfma.rn.ftz.f32 %d, %a, %b, %x;"
    yield ScalarForm("fma.rn.ftz.f32 c=0", ("f32", "f32"), 32, text)
    pairs = [("mul", "add"), ("mul.rn", "add.rn"), ("mul", "add.rn"), ("mul.rn", "add"), ("mul", "sub")]
    for product_opcode, sum_opcode in pairs:
        for types, register in (("f32", "%x"), ("f64", "%wide")):
            text = f"{product_opcode}.{types} {register}, %a, %b;\n{sum_opcode}.{types} %d, {register}, %c;"
            bits = kind_bits(types)
            yield ScalarForm(f"{product_opcode}.{types} + {sum_opcode}.{types}", (types,) * 3, bits, text)


FAMILIES = (
    single_precision,
    double_precision,
    half_precision,
    extremes,
    approximate,
    conversions,
    float_conversions,
    comparisons,
    integer_arithmetic,
    carries,
    bit_arithmetic,
    across_lanes,
    memory,
    combinations,
)


def forms() -> list[ScalarForm]:
    """Every form in order; entry k of the module is `form_<k>`."""
    return [row for family in FAMILIES for row in family()]


def ptx() -> str:
    """The PTX module of all forms."""
    return probe_module(forms())


if __name__ == "__main__":
    print(ptx(), end="")
