"""What each tensor core does with a dot product: one row per chip, unit and types.

The numbers are the parameters of refsim.numerics.dot; nothing here computes.
"""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from refsim.errors import RefsimError, unknown
from refsim.evidence import Evidence, Level
from refsim.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0,
    F16,
    F32,
    F64,
    S8,
    S32,
    TF32,
    U8,
    UE4M3,
    ElementType,
    Format,
)
from refsim.integers import is_whole
from refsim.numerics.methods import (
    EXACT,
    FLUSHED_TREE,
    FMA_CHAIN,
    GROUPED,
    INTEGER,
    LATE_EVEN_ODD,
    LATE_TRUNCATED,
    TRUNCATED,
    Method,
)
from refsim.render.cards import Card, Facts
from refsim.sources import KHATTAK_MIKAITIS, MEASURED_H200, MMA_SIM, PTX, ROCJITSU, TCGEN05_MODEL, XIE, Source

RZ_F32, RZ_E8M13, RNE_F16, RNE_F32, RNE_F64, WRAP_S32 = (
    "rz-f32",
    "rz-e8m13",
    "rne-f16",
    "rne-f32",
    "rne-f64",
    "wrap-s32",
)
ASCENDING, BYTE_PAIRS = "ascending", "byte-pairs"
EARLY, LATE = "early", "late"


# fmt: off
@dataclass(frozen=True, repr=False)
class Profile(Card):
    """The arithmetic of one instruction family of one chip.

    `a_formats` and `b_formats` may be mixed freely. `k` lists the K of the instructions, elements; a step takes
    `length` products and C at once, keeps `fraction` bits below the largest exponent and rounds the sum by `rounding`.
    A zero takes part in the alignment with `zero_exponent`. `order` says which products form a step, `c_enters` whether
    C is aligned with the products (early) or added by one IEEE addition at the end of an instruction (late).
    `operands` is the format that operands are converted to first. `scales` pairs the scale types of a block-scaled kind
    with its block sizes, elements. `negates`: the instruction can turn the sign of an operand. `keeps_nan`: of the NaNs
    of a multiply-add the first of B, C, A comes out, made quiet; elsewhere every NaN is canonical. Hopper's FP8 wgmma:
    32 products, 13 bits, rz-e8m13.
    """

    target: str
    unit: str
    a_formats: tuple[ElementType, ...]
    b_formats: tuple[ElementType, ...]
    d_format: ElementType
    k: tuple[int, ...]
    method: Method
    length: int
    rounding: str
    source: Source
    evidence: Evidence
    fraction: int | None = None
    zero_exponent: int | None = None
    order: str = ASCENDING
    c_enters: str = EARLY
    operands: Format | None = None
    scales: tuple[tuple[Format, int], ...] = ()
    negates: bool = False
    keeps_nan: bool = False

    @property
    def name(self) -> str:
        """Chip, unit and types: "sm_90 wgmma e4m3|e5m2 -> f32"."""
        a, b = ("|".join(map(str, formats)) for formats in (self.a_formats, self.b_formats))
        return f"{self.target} {self.unit} {a if a == b else f'{a} x {b}'} -> {self.d_format}"

    @property
    def d_dtype(self) -> np.dtype[Any]:
        """NumPy's type of C and D: float32, float16, float64 or int32."""
        assert self.d_format.array_dtype is not None
        return self.d_format.array_dtype

    @property
    def adds_c_last(self) -> bool:
        """Whether C is added after the steps of an instruction, by one IEEE addition."""
        return self.method.adds_c and self.c_enters == LATE

    @property
    def arithmetic(self) -> tuple[object, ...]:
        """What decides the bits: two rows with equal arithmetic are the same function of their operands.

        Chip, unit, source and evidence are left out, and whether operands can be negated. The 91 rows are 49 functions.
        """
        return (
            self.a_formats, self.b_formats, self.d_format, self.k, self.method, self.length, self.rounding, self.fraction,
            self.zero_exponent, self.order, self.c_enters, self.operands, self.scales, self.keeps_nan,
        )

    def steps(self, k: int) -> list[list[int]]:
        """The products of each step of one instruction, in order.

        Byte pairs: of each four consecutive k the first two belong to the first step, the others to the second;
        steps(8) is [[0, 1, 4, 5], [2, 3, 6, 7]].
        """
        if self.order == BYTE_PAIRS:
            return [[i for i in range(k) if i % 4 // 2 == half] for half in (0, 1)]
        length = min(self.length, k)
        return [list(range(start, start + length)) for start in range(0, k, length)]

    def __str__(self) -> str:
        return f"{self.name} [{self.evidence}]"

    def _line(self) -> str:
        return f"{self.name}: {self.method}"

    def _facts(self) -> Facts:
        yield "K of one instruction", ", ".join(map(str, self.k))
        yield "terms of one step", self.length
        yield "rounding", self.rounding
        yield "evidence", self.evidence
        yield "source", self.source
# fmt: on


F8, F8F6F4 = (E4M3, E5M2), (E4M3, E5M2, E2M3, E3M2, E2M1)
FNUZ8 = (E4M3FNUZ, E5M2FNUZ)
INT8 = (S8, U8)
_SCALES_32, _SCALES_16 = ((E8M0, 32),), ((E8M0, 32), (E8M0, 16), (UE4M3, 16))

_MODEL = Evidence(Level.INDEPENDENT, "independent published models agree")
_UNVERIFIED = Evidence(Level.UNVERIFIED, "no bit model is published; computed as a float32 FMA per k")
_IEEE = Evidence(Level.INDEPENDENT, "IEEE 754 fused multiply-add in ascending k")
_INTEGER = Evidence(Level.FORMULA, "exact integers, by definition of the instruction")


def _published(chips: str) -> Evidence:
    return Evidence(Level.SILICON, f"reproduces every published dot product of {chips}")


def _of_four(evidence: Evidence) -> Evidence:
    """The published tf32 dot products have four elements."""
    four = evidence.level is Level.SILICON
    return Evidence(Level.SILICON, f"{evidence.what} (K = 4; longer steps by published models)") if four else evidence


_XIE_NVIDIA, _SIM_NVIDIA = XIE["table 4"], MMA_SIM["nv_ptx/sim.py"]


# fmt: off
def _truncated(target: str, unit: str, formats: tuple[Format, ...], d: Format, k: tuple[int, ...], length: int, fraction: int,
               zero: tuple[int, int], evidence: Evidence = _MODEL, *, source: Source = _XIE_NVIDIA, rounding: str = RZ_F32,
               order: str = ASCENDING, c_enters: str = EARLY, operands: Format | None = None,
               scales: tuple[tuple[Format, int], ...] = (), negates: bool = False) -> Profile:
    """A row of the fused, truncated sum; `zero` holds the zero exponents of f32 and f16 results."""
    half = d is F16
    return Profile(
        target, unit, formats, formats, d, k, TRUNCATED, length, RNE_F16 if half else rounding, source, evidence, fraction,
        zero[half], order, c_enters, operands, scales, negates,
    )
# fmt: on


def _both(*arguments: object, **options: object) -> list[Profile]:
    """The f32 and the f16 form of a row."""
    target, unit, formats, *rest = arguments
    return [_truncated(target, unit, formats, d, *rest, **options) for d in (F32, F16)]  # type: ignore[arg-type]


_VOLTA, _AMPERE, _HOPPER = (-131, -19), (-132, -20), (-133, -21)
# fmt: off
_CHECKED = {
    "sm_70": "V100", "sm_80": "A100", "sm_86": "A2", "sm_89": "RTX 1000 Ada and L40S", "sm_90": "H100 and H200",
    "sm_100": "B200",
}


def _halves(target: str, unit: str, k16: tuple[int, ...], k8: tuple[int, ...], length: int, fraction: int,
            zero: tuple[int, int], evidence: Evidence, *, negates: bool = False) -> list[Profile]:
    """f16, bf16 and tf32 of one chip: tf32 takes half as many products a step."""
    shape = (length, fraction, zero, evidence)
    return [
        *_both(target, unit, (F16,), k16, *shape, negates=negates),
        _truncated(target, unit, (BF16,), F32, k16, *shape, negates=negates),
        _truncated(target, unit, (TF32,), F32, k8, length // 2, fraction, zero, _of_four(evidence), negates=negates),
    ]
# fmt: on


def _integer(target: str, unit: str, k: tuple[int, ...], source: Source) -> Profile:
    return Profile(target, unit, INT8, INT8, S32, k, INTEGER, max(k), WRAP_S32, source, _INTEGER)


# fmt: off
def _chain(
    target: str, unit: str, format: Format, k: tuple[int, ...], source: Source, evidence: Evidence = _IEEE
) -> Profile:
    rounding = RNE_F64 if format is F64 else RNE_F32
    return Profile(
        target, unit, (format,), (format,), format, k, FMA_CHAIN, 1, rounding, source, evidence,
        keeps_nan=unit == "mma.sync",
    )


def _block_scaled(target: str, prefix: str) -> list[Profile]:
    thor = Evidence(Level.INDEPENDENT, "independent published models agree; 36,864 words of an sm_110 chip reported equal")
    fused = _truncated(target, f"{prefix}.mxf8f6f4", F8F6F4, F32, (32,), 32, 25, _HOPPER, thor, scales=_SCALES_32)
    fp4 = [
        Profile(
            target, f"{prefix}.{kind}", (E2M1,), (E2M1,), F32, (64,), GROUPED, 64, RZ_F32, _SIM_NVIDIA,
            _MODEL, 35, -139, scales=scales,
        )
        for kind, scales in (("mxf4", _SCALES_32), ("mxf4nvf4", _SCALES_16))
    ]
    return [fused, *fp4]


def _warp_rows() -> list[Profile]:
    """mma.sync of every chip but its block-scaled kinds."""
    unit, rows = "mma.sync", list[Profile]()
    rows += _both("sm_70", unit, (F16,), (4,), 4, 23, _VOLTA, _published("V100"))
    rows += _both("sm_75", unit, (F16,), (4,), 4, 23, _VOLTA)
    rows += _both("sm_75", unit, (F16,), (8,), 8, 24, _AMPERE)
    for target in ("sm_80", "sm_86", "sm_89"):
        rows += _halves(target, unit, (16, 8), (8, 4), 8, 24, _AMPERE, _published(_CHECKED[target]))
    rows += _both("sm_89", unit, F8, (32, 16), 16, 13, _AMPERE, _published(_CHECKED["sm_89"]), rounding=RZ_E8M13)
    for target in ("sm_90", "sm_100", "sm_120"):
        evidence = _published(_CHECKED[target]) if target in _CHECKED else _MODEL
        rows += _halves(target, unit, (16, 8), (8, 4), 16, 25, _HOPPER, evidence)
    for target, d in product(("sm_90", "sm_100"), (F32, F16)):
        wgmma = target == "sm_90" and d is F32  # what was published for H100 and H200 is that unit's
        rows.append(
            _truncated(
                target, unit, F8, d, (32, 16), 16, 25, _HOPPER, _MODEL if wgmma else _published(_CHECKED[target]),
                order=BYTE_PAIRS, c_enters=LATE, operands=F16, source=KHATTAK_MIKAITIS["figure 5c"],
            )
        )
    rows += _both("sm_120", unit, F8, (32, 16), 32, 25, _HOPPER)
    rows += _both("sm_120", unit, F8F6F4, (32,), 32, 25, _HOPPER)
    for target in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"):
        rows.append(_integer(target, unit, (16,) if target == "sm_75" else (32, 16), PTX["mma.sync, integer types"]))
        if target != "sm_75":
            k = (16, 8, 4) if target in ("sm_90", "sm_100", "sm_120") else (4,)
            rows.append(_chain(target, unit, F64, k, XIE["table 4"]))
    return rows
# fmt: on


def _warpgroup_rows() -> list[Profile]:
    rows = _halves("sm_90", "wgmma", (16,), (8,), 16, 25, _HOPPER, _MODEL, negates=True)
    for d, evidence in ((F32, _published(_CHECKED["sm_90"])), (F16, _MODEL)):
        rows.append(
            _truncated("sm_90", "wgmma", F8, d, (32,), 32, 13, _HOPPER, evidence, rounding=RZ_E8M13, negates=True)
        )
    return [*rows, _integer("sm_90", "wgmma", (32,), PTX["wgmma.mma_async, integer types"])]


def _tcgen05_rows() -> list[Profile]:
    target, words = (
        "sm_100",
        Evidence(Level.INDEPENDENT, "independent published models agree; 46 million cases reported on B200"),
    )
    shape = (25, _HOPPER, words)
    return [
        *_both(target, "tcgen05.f16", (F16,), (16,), 16, *shape, negates=True, source=TCGEN05_MODEL["MODEL.md"]),
        _truncated(target, "tcgen05.f16", (BF16,), F32, (16,), 16, *shape, negates=True),
        _truncated(target, "tcgen05.tf32", (TF32,), F32, (8,), 8, *shape, negates=True),
        *_both(target, "tcgen05.f8f6f4", F8F6F4, (32,), 32, *shape, negates=True, source=TCGEN05_MODEL["MODEL.md"]),
        _integer(target, "tcgen05.i8", (32,), TCGEN05_MODEL["MODEL.md, section 6"]),
        *_block_scaled(target, "tcgen05"),
    ]


# fmt: off
def _amd_rows() -> list[Profile]:
    """MFMA: gfx908 is CDNA1, gfx90a CDNA2, gfx942 CDNA3, gfx950 CDNA4."""
    source, rows = MMA_SIM["amd/sim.py"], list[Profile]()

    def row(
        target: str, formats: tuple[Format, ...], k: tuple[int, ...], method: Method, length: int, unit: str = "mfma"
    ) -> None:
        late = method.aligns  # those of AMD that align add C after the products
        fraction, enters = (24, LATE) if late else (None, EARLY)
        rows.append(
            Profile(
                target, unit, formats, formats, F32, k, method, length, RNE_F32, source, _MODEL, fraction,
                c_enters=enters,
            )
        )

    for target in ("gfx908", "gfx90a", "gfx942"):
        rows.append(_chain(target, "mfma", F32, (4, 2, 1), XIE["table 6"]))
        if target != "gfx908":
            rows.append(_chain(target, "mfma", F64, (4,), XIE["table 6"]))
    row("gfx908", (F16,), (16, 8, 4), EXACT, 4)
    row("gfx908", (BF16,), (8, 4, 2), EXACT, 2)
    row("gfx90a", (F16,), (16, 8, 4), FLUSHED_TREE, 4)
    row("gfx90a", (BF16,), (8, 4, 2), FLUSHED_TREE, 2)
    row("gfx90a", (BF16,), (16, 8, 4), FLUSHED_TREE, 4, "mfma.1k")
    row("gfx942", (TF32,), (8, 4), LATE_TRUNCATED, 4)
    row("gfx942", (F16,), (16, 8, 4), LATE_TRUNCATED, 8)
    row("gfx942", (BF16,), (16, 8, 4), LATE_TRUNCATED, 8)
    row("gfx942", FNUZ8, (32, 16), LATE_EVEN_ODD, 16)
    for formats, k in (((F16,), (32, 16)), ((BF16,), (32, 16)), (F8, (32, 16)), (F8F6F4, (128, 64))):
        rows.append(
            Profile(
                "gfx950", "mfma", formats, formats, F32, k, FMA_CHAIN, 1, RNE_F32,
                ROCJITSU["matrix emulation, issues 10330 and 10344"], _UNVERIFIED,
            )
        )
    return rows


# Words of D that an H200 returned under each row, none of which differs: conformance/vectors/h200/numerics.json.
MEASURED_WORDS = {
    ("mma.sync", F16, F32): 16_421_376, ("mma.sync", F16, F16): 14_687_744,
    ("mma.sync", BF16, F32): 16_946_688, ("mma.sync", TF32, F32): 16_798_208,
    ("mma.sync", E4M3, F32): 64_189_952, ("mma.sync", E4M3, F16): 27_939_584,
    ("mma.sync", S8, S32): 28_311_552, ("mma.sync", F64, F64): 24_841_856,
    ("wgmma", F16, F32): 30_945_792, ("wgmma", F16, F16): 27_478_528,
    ("wgmma", BF16, F32): 32_094_720, ("wgmma", TF32, F32): 31_476_224,
    ("wgmma", E4M3, F32): 118_701_056, ("wgmma", E4M3, F16): 95_745_536,
    ("wgmma", S8, S32): 28_311_552,
}
# fmt: on


def _measured(row: Profile) -> Profile:
    """The row with what an H200 says of it, where that was asked."""
    words = MEASURED_WORDS.get((row.unit, row.a_formats[0], row.d_format)) if row.target == "sm_90" else None
    if words is None:
        return row
    published = ", and the published dot products of H100 and H200" if row.evidence.level is Level.SILICON else ""
    evidence = Evidence(Level.SILICON, f"{words:,} words of an H200, every bit equal{published}")
    return replace(row, evidence=evidence, source=MEASURED_H200["numerics.md"])


PROFILES: tuple[Profile, ...] = tuple(
    _measured(row)
    for row in (*_warp_rows(), *_warpgroup_rows(), *_tcgen05_rows(), *_block_scaled("sm_120", "mma.sync"), *_amd_rows())
)
_TARGETS, _UNITS = (list(dict.fromkeys(getattr(row, part) for row in PROFILES)) for part in ("target", "unit"))
_BY_KEY: dict[tuple[str, str, str, str, str], list[Profile]] = {}  # those with the largest K first
for _row in sorted(PROFILES, key=lambda row: -max(row.k)):
    for _a, _b in product(_row.a_formats, _row.b_formats):
        _BY_KEY.setdefault((_row.target, _row.unit, _a.name, _b.name, _row.d_format.name), []).append(_row)


def rows_of(target: str | None = None, unit: str | None = None) -> list[Profile]:
    """The rows of a chip, a unit, both or all; rows_of("sm_90", "wgmma") has six."""
    where = None if target is None else chip(target)
    return [row for row in PROFILES if where in (None, row.target) and unit in (None, row.unit)]


def chip(target: str) -> str:
    """The target without its a or f suffix: "sm_90a" is the same silicon as "sm_90". Unknown targets are refused."""
    given = str(target)
    name = given[:-1] if given.startswith("sm_") and given.endswith(("a", "f")) else given
    if name not in _TARGETS:
        raise unknown("target", given, _TARGETS)
    return name


def profile(
    target: str,
    unit: str,
    a_format: str | ElementType,
    b_format: str | ElementType,
    d_format: str | ElementType,
    k: int | None = None,
) -> Profile:
    """The row of an instruction; `k` chooses where a chip has several (None: the one with the largest K).

    profile("sm_90a", "wgmma", "e4m3", "e4m3", "f32").fraction is 13. Raises RefsimError with the known combinations.
    Source: the row's.
    """
    name = chip(target)
    if str(unit) not in _UNITS:
        raise unknown("unit", str(unit), _UNITS)
    rows = _BY_KEY.get((name, unit, str(a_format), str(b_format), str(d_format)), [])
    if not rows:
        raise _no_row(name, unit, f"{a_format} x {b_format} -> {d_format}")
    fitting = rows if k is None else [row for row in rows if is_whole(k) and k in row.k]
    if not fitting:
        sizes = sorted({size for row in rows for size in row.k})
        raise RefsimError(
            "instruction-k",
            f"k={k!r} is not the K of an instruction",
            rows[0].name,
            help=f"k: {', '.join(map(str, sizes))}",
        )
    return fitting[0]


def _no_row(target: str, unit: str, types: str) -> RefsimError:
    here = rows_of(target, unit) or rows_of(target)
    known = "; ".join(dict.fromkeys(row.name for row in here))
    return RefsimError(
        "unknown-arithmetic", f"{target} {unit} has no known arithmetic for {types}", help=f"known: {known}"
    )
