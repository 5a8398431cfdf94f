"""The arithmetic of each tensor core: one entry per chip, unit and types.

The numbers are the parameters of refsim.numerics.dot; nothing here computes.
"""

from dataclasses import replace
from itertools import product
from typing import Any, cast, get_args

from refsim.errors import RefsimError, check_named, unknown
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
    BYTE_PAIRS,
    EXACT,
    FLUSHED_TREE,
    FMA_CHAIN,
    GROUPED,
    INTEGER,
    LATE,
    LATE_EVEN_ODD,
    LATE_TRUNCATED,
    RNE_F16,
    RNE_F32,
    RZ_E8M13,
    RZ_F32,
    TO_NEAREST,
    TRUNCATED,
    WRAP_S32,
)
from refsim.numerics.rows import Profile, Unit
from refsim.sources import KHATTAK_MIKAITIS, MEASURED_H200, MMA_SIM, PTX, ROCJITSU, TCGEN05_MODEL, XIE, Source
from refsim.targets import lacking, target_name, target_named

Formats = tuple[ElementType, ...]
F8, F8F6F4, FNUZ8, INT8 = (E4M3, E5M2), (E4M3, E5M2, E2M3, E3M2, E2M1), (E4M3FNUZ, E5M2FNUZ), (S8, U8)
SCALES_32, SCALES_16 = ((E8M0, 32),), ((E8M0, 32), (E8M0, 16), (UE4M3, 16))
BOTH = (F32, F16)  # results of an instruction that has two forms
_Zeros = dict[ElementType, int]  # the zero exponents by type of result
VOLTA: _Zeros = {F32: -131, F16: -19}
AMPERE: _Zeros = {F32: -132, F16: -20}
HOPPER: _Zeros = {F32: -133, F16: -21}

_XIE, _SIM_NVIDIA, _SIM_AMD = XIE["table 4"], MMA_SIM["nv_ptx/sim.py"], MMA_SIM["amd/sim.py"]
_EMULATED = ROCJITSU["matrix emulation, issues 10330 and 10344"]

_MODEL = Evidence(Level.INDEPENDENT, "independent published models agree")
_THOR = Evidence(
    Level.INDEPENDENT, "independent published models agree; 36,864 results of sm_110's tcgen05 reported equal"
)
_B200 = Evidence(Level.INDEPENDENT, "independent published models agree; 46 million cases reported on B200")
_UNVERIFIED = Evidence(Level.UNVERIFIED, "no bit model is published; computed as a float32 FMA per k")
_IEEE = Evidence(Level.INDEPENDENT, "IEEE 754 fused multiply-add in ascending k")
_INTEGER = Evidence(Level.FORMULA, "exact integers, by definition of the instruction")
_CHIPS = {
    "sm_70": "V100",
    "sm_80": "A100",
    "sm_86": "A2",
    "sm_89": "RTX 1000 Ada and L40S",
    "sm_90": "H100 and H200",
    "sm_100": "B200",
}
_PUBLISHED = {
    target: Evidence(Level.SILICON, f"reproduces every published dot product of {chips}")
    for target, chips in _CHIPS.items()
}


def _row(target: str, unit: Unit, types: Formats, d: ElementType, **fields: Any) -> Profile:
    """Return one profile, with the fields of `Profile`; operands of these types may be mixed."""
    fields = {"evidence": _MODEL} | fields
    return Profile(target=target, unit=unit, a_formats=types, b_formats=types, d_format=d, **fields)


def _fused(target: str, unit: Unit, types: Formats, results: Formats, *, zero: _Zeros, **fields: Any) -> list[Profile]:
    """Return profiles of the fused, truncated sum, one for each type of result: f32 is cut, f16 rounded to nearest."""
    fields = {"method": TRUNCATED, "rounding": RZ_F32, "source": _XIE} | fields
    forms: dict[ElementType, dict[str, Any]] = {F32: fields, F16: fields | {"rounding": RNE_F16}}
    return [_row(target, unit, types, d, zero_exponent=zero[d], **forms[d]) for d in results]


def _halves(
    target: str, unit: Unit, *, k: tuple[int, ...], length: int, evidence: Evidence = _MODEL, **fields: Any
) -> list[Profile]:
    """Return f16, bf16 and tf32 of one chip; tf32 has half the K, and half as many products in a step."""
    return [
        *_fused(target, unit, (F16,), BOTH, k=k, length=length, evidence=evidence, **fields),
        *_fused(target, unit, (BF16,), (F32,), k=k, length=length, evidence=evidence, **fields),
        *_tf32(target, unit, k=tuple(n // 2 for n in k), length=length // 2, evidence=evidence, **fields),
    ]


def _tf32(target: str, unit: Unit, *, evidence: Evidence, **fields: Any) -> list[Profile]:
    """Return tf32 of one chip; the published tf32 dot products have four elements."""
    if evidence.level is Level.SILICON:
        evidence = replace(evidence, what=f"{evidence.what} (K = 4; longer steps by published models)")
    return _fused(target, unit, (TF32,), (F32,), evidence=evidence, **fields)


def _grouped(target: str, unit: Unit, **fields: Any) -> Profile:
    """Return FP4 whose groups of 16 products are one term."""
    fields = {"k": (64,), "length": 64, "fraction": 35, "zero_exponent": -139} | fields
    return _row(target, unit, (E2M1,), F32, method=GROUPED, rounding=RZ_F32, source=_SIM_NVIDIA, **fields)


def _integer(
    target: str, unit: Unit, *, k: tuple[int, ...], source: Source = PTX["mma.sync, integer types"]
) -> Profile:
    """Return the exact sum of s8 and u8, wrapped to 32 bits."""
    fields = {"method": INTEGER, "length": max(k), "rounding": WRAP_S32, "evidence": _INTEGER}
    return _row(target, unit, INT8, S32, k=k, source=source, **fields)


def _chain(target: str, unit: Unit, type: Format, **fields: Any) -> Profile:
    """Return one fused multiply-add for each k."""
    fields = {"method": FMA_CHAIN, "length": 1, "rounding": TO_NEAREST[type], "evidence": _IEEE} | fields
    return _row(target, unit, (type,), type, **fields)


def _amd(target: str, types: Formats, *, unit: Unit = "mfma", **fields: Any) -> Profile:
    """Return sums rounded to nearest; methods that align or flush add C last, and methods that align keep 24 bits."""
    late: dict[str, Any] = {"c_enters": LATE} if fields["method"].flushes else {}
    late |= {"fraction": 24, "c_enters": LATE} if fields["method"].aligns else {}
    return _row(target, unit, types, F32, rounding=RNE_F32, **({"source": _SIM_AMD} | late | fields))


# ---- the table: chip, unit, types of operands and of results ---------------------------------------------------------

_REWRITTEN = {"order": BYTE_PAIRS, "c_enters": LATE, "operands": F16, "source": KHATTAK_MIKAITIS["figure 5c"]}
"""Fields of FP8 mma.sync where the assembler compiles it to f16 products."""

# fmt: off
_WARP = (
    *_fused("sm_70", "mma.sync", (F16,), BOTH, k=(4,), length=4, fraction=23, zero=VOLTA, evidence=_PUBLISHED["sm_70"]),
    *_fused("sm_75", "mma.sync", (F16,), BOTH, k=(4,), length=4, fraction=23, zero=VOLTA),
    *_fused("sm_75", "mma.sync", (F16,), BOTH, k=(8,), length=8, fraction=24, zero=AMPERE),
    *_halves("sm_80", "mma.sync", k=(16, 8), length=8, fraction=24, zero=AMPERE, evidence=_PUBLISHED["sm_80"]),
    *_halves("sm_86", "mma.sync", k=(16, 8), length=8, fraction=24, zero=AMPERE, evidence=_PUBLISHED["sm_86"]),
    *_halves("sm_89", "mma.sync", k=(16, 8), length=8, fraction=24, zero=AMPERE, evidence=_PUBLISHED["sm_89"]),
    *_fused("sm_89", "mma.sync", F8, BOTH, k=(32, 16), length=16, fraction=13, zero=AMPERE, rounding=RZ_E8M13,
            evidence=_PUBLISHED["sm_89"]),
    *_halves("sm_90", "mma.sync", k=(16, 8), length=16, fraction=25, zero=HOPPER, evidence=_PUBLISHED["sm_90"]),
    *_halves("sm_100", "mma.sync", k=(16, 8), length=16, fraction=25, zero=HOPPER, evidence=_PUBLISHED["sm_100"]),
    *_halves("sm_120", "mma.sync", k=(16, 8), length=16, fraction=25, zero=HOPPER),
    # The published dot products of FP8 into f32 for H100 and H200 are wgmma's.
    *_fused("sm_90", "mma.sync", F8, (F32,), k=(32, 16), length=16, fraction=25, zero=HOPPER, **_REWRITTEN),
    *_fused("sm_90", "mma.sync", F8, (F16,), k=(32, 16), length=16, fraction=25, zero=HOPPER, **_REWRITTEN,
            evidence=_PUBLISHED["sm_90"]),
    *_fused("sm_100", "mma.sync", F8, BOTH, k=(32, 16), length=16, fraction=25, zero=HOPPER, **_REWRITTEN,
            evidence=_PUBLISHED["sm_100"]),
    *_fused("sm_120", "mma.sync", F8, BOTH, k=(32, 16), length=32, fraction=25, zero=HOPPER),
    *_fused("sm_120", "mma.sync", F8F6F4, BOTH, k=(32,), length=32, fraction=25, zero=HOPPER),
    _integer("sm_75", "mma.sync", k=(16,)),
    _integer("sm_80", "mma.sync", k=(32, 16)),
    _chain("sm_80", "mma.sync", F64, k=(4,), source=_XIE, keeps_nan=True),
    _integer("sm_86", "mma.sync", k=(32, 16)),
    _chain("sm_86", "mma.sync", F64, k=(4,), source=_XIE, keeps_nan=True),
    _integer("sm_89", "mma.sync", k=(32, 16)),
    _chain("sm_89", "mma.sync", F64, k=(4,), source=_XIE, keeps_nan=True),
    _integer("sm_90", "mma.sync", k=(32, 16)),
    _chain("sm_90", "mma.sync", F64, k=(16, 8, 4), source=_XIE, keeps_nan=True),
    _integer("sm_100", "mma.sync", k=(32, 16)),
    _chain("sm_100", "mma.sync", F64, k=(16, 8, 4), source=_XIE, keeps_nan=True),
    _integer("sm_120", "mma.sync", k=(32, 16)),
    _chain("sm_120", "mma.sync", F64, k=(16, 8, 4), source=_XIE, keeps_nan=True),
)
_WARPGROUP = (
    *_halves("sm_90", "wgmma", k=(16,), length=16, fraction=25, zero=HOPPER, negates=True),
    *_fused("sm_90", "wgmma", F8, (F32,), k=(32,), length=32, fraction=13, zero=HOPPER, rounding=RZ_E8M13, negates=True,
            evidence=_PUBLISHED["sm_90"]),
    *_fused("sm_90", "wgmma", F8, (F16,), k=(32,), length=32, fraction=13, zero=HOPPER, negates=True),
    _integer("sm_90", "wgmma", k=(32,), source=PTX["wgmma.mma_async, integer types"]),
)
_TCGEN05 = (
    *_fused("sm_100", "tcgen05.f16", (F16,), BOTH, k=(16,), length=16, fraction=25, zero=HOPPER, negates=True,
            source=TCGEN05_MODEL["MODEL.md"], evidence=_B200),
    *_fused("sm_100", "tcgen05.f16", (BF16,), (F32,), k=(16,), length=16, fraction=25, zero=HOPPER, negates=True, evidence=_B200),
    *_fused("sm_100", "tcgen05.tf32", (TF32,), (F32,), k=(8,), length=8, fraction=25, zero=HOPPER, negates=True, evidence=_B200),
    *_fused("sm_100", "tcgen05.f8f6f4", F8F6F4, BOTH, k=(32,), length=32, fraction=25, zero=HOPPER, negates=True,
            source=TCGEN05_MODEL["MODEL.md"], evidence=_B200),
    _integer("sm_100", "tcgen05.i8", k=(32,), source=TCGEN05_MODEL["MODEL.md, section 6"]),
)
_BLOCK_SCALED = (
    *_fused("sm_100", "tcgen05.mxf8f6f4", F8F6F4, (F32,), k=(32,), length=32, fraction=25, zero=HOPPER, scales=SCALES_32,
            evidence=_THOR),
    _grouped("sm_100", "tcgen05.mxf4", scales=SCALES_32),
    _grouped("sm_100", "tcgen05.mxf4nvf4", scales=SCALES_16),
    *_fused("sm_120", "mma.sync.mxf8f6f4", F8F6F4, (F32,), k=(32,), length=32, fraction=25, zero=HOPPER, scales=SCALES_32,
            evidence=_MODEL),
    _grouped("sm_120", "mma.sync.mxf4", scales=SCALES_32),
    _grouped("sm_120", "mma.sync.mxf4nvf4", scales=SCALES_16),
)
_AMD = (  # gfx908 is CDNA1, gfx90a CDNA2, gfx942 CDNA3, gfx950 CDNA4
    _chain("gfx908", "mfma", F32, k=(4, 2, 1), source=XIE["table 6"]),
    _chain("gfx90a", "mfma", F32, k=(4, 2, 1), source=XIE["table 6"]),
    _chain("gfx90a", "mfma", F64, k=(4,), source=XIE["table 6"]),
    _chain("gfx942", "mfma", F32, k=(4, 2, 1), source=XIE["table 6"]),
    _chain("gfx942", "mfma", F64, k=(4,), source=XIE["table 6"]),
    _amd("gfx908", (F16,), k=(16, 8, 4), method=EXACT, length=4),
    _amd("gfx908", (BF16,), k=(8, 4, 2), method=EXACT, length=2),
    _amd("gfx90a", (F16,), k=(16, 8, 4), method=FLUSHED_TREE, length=4),
    _amd("gfx90a", (BF16,), k=(8, 4, 2), method=FLUSHED_TREE, length=2),
    _amd("gfx90a", (BF16,), k=(16, 8, 4), method=FLUSHED_TREE, length=4, unit="mfma.1k"),
    _amd("gfx942", (TF32,), k=(8, 4), method=LATE_TRUNCATED, length=4),
    _amd("gfx942", (F16,), k=(16, 8, 4), method=LATE_TRUNCATED, length=8),
    _amd("gfx942", (BF16,), k=(16, 8, 4), method=LATE_TRUNCATED, length=8),
    _amd("gfx942", FNUZ8, k=(32, 16), method=LATE_EVEN_ODD, length=16),
    _amd("gfx950", (F16,), k=(32, 16), method=FMA_CHAIN, length=1, source=_EMULATED, evidence=_UNVERIFIED),
    _amd("gfx950", (BF16,), k=(32, 16), method=FMA_CHAIN, length=1, source=_EMULATED, evidence=_UNVERIFIED),
    _amd("gfx950", F8, k=(32, 16), method=FMA_CHAIN, length=1, source=_EMULATED, evidence=_UNVERIFIED),
    _amd("gfx950", F8F6F4, k=(128, 64), method=FMA_CHAIN, length=1, source=_EMULATED, evidence=_UNVERIFIED),
    _amd("gfx950", F8F6F4, k=(128, 64), method=FMA_CHAIN, length=1, unit="mfma.scale", scales=SCALES_32,
         source=_EMULATED, evidence=_UNVERIFIED),
)

# Elements of D that an H200 returned for each entry; 0 differ: conformance/vectors/h200/numerics.json.
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
    """Return the profile with the evidence of an H200, if it was measured."""
    words = MEASURED_WORDS.get((row.unit, row.a_formats[0], row.d_format)) if row.target == "sm_90" else None
    if words is None:
        return row
    published = ", and the published dot products of H100 and H200" if row.evidence.level is Level.SILICON else ""
    evidence = Evidence(Level.SILICON, f"{words:,} results of an H200, every bit equal{published}")
    return replace(row, evidence=evidence, source=MEASURED_H200["numerics.md"])


# K that one bit of the instruction descriptor makes longer: chips, K, products of a step
_LONG = Evidence(
    Level.UNVERIFIED, "nothing is published of the longer K: steps as those of sm_100, FP4's of 96 products"
)
_LONGER = {
    "tcgen05.mxf4": ((103, 107), 96, 96),
    "tcgen05.mxf4nvf4": ((103, 107), 96, 96),
    "tcgen05.mxf8f6f4": ((107,), 64, 32),
}
PROFILES: tuple[Profile, ...] = tuple(_measured(row) for row in (*_WARP, *_WARPGROUP, *_TCGEN05, *_BLOCK_SCALED, *_AMD))
_UNITS: list[str] = list(get_args(Unit))
_TARGETS = list(dict.fromkeys(row.target for row in PROFILES))
_BY_KEY: dict[tuple[str, str, str, str, str], list[Profile]] = {}  # profiles with the largest K first
for _each in sorted(PROFILES, key=lambda row: -max(row.k)):
    for _a, _b in product(_each.a_formats, _each.b_formats):
        _BY_KEY.setdefault((_each.target, _each.unit, _a.name, _b.name, _each.d_format.name), []).append(_each)


def rows_of(target: str | None = None, unit: str | None = None) -> list[Profile]:
    """Return the profiles of a chip, a unit, both or all; rows_of("sm_90", "wgmma") has six."""
    rows = [row for row in PROFILES if unit in (None, row.unit)]
    if target is None:
        return rows
    where, target = chip(target), target_name(target)
    return [_of(target, row) for row in rows if row.target == where and _absent(target, row.unit) is None]


def chip(target: str) -> str:
    """Return the chip whose profiles a target uses, "sm_90" for "sm_90a"; raise RefsimError `unknown-target`."""
    given = target_name(str(target))
    name = given if given in _TARGETS else f"sm_{target_named(given).row.cores}"
    if name not in _TARGETS:
        raise unknown("target", given, _TARGETS)
    return name


def _of(target: str, row: Profile) -> Profile:
    """Return the profile as a target's; if the target uses another chip's tensor cores, the evidence says so."""
    own = f"sm_{target_named(target).number}" if target.startswith("sm_") else target
    if own == row.target:
        return row
    if row.evidence.level is Level.FORMULA:
        return replace(row, target=own)
    taken = Evidence(Level.UNVERIFIED, f"nothing is published of {own}: taken for {row.target} ({row.evidence.what})")
    return replace(row, target=own, evidence=taken)


def _absent(target: str, unit: str) -> RefsimError | None:
    """Return the error if no chip of this number has the unit, whatever its suffix; else None."""
    return lacking(target_named(target).row.names[-1], unit) if target.startswith("sm_") else None


_PREFERRED = ("wgmma", "tcgen05", "mma")


def unit_rank(unit: str) -> int:
    """Return the rank of a unit among the units of a target; kernels use the lowest.

    Ranks are a warpgroup's (0), tensor memory's, a warp's.
    """
    family = unit.partition(".")[0]
    return _PREFERRED.index(family) if family in _PREFERRED else len(_PREFERRED)


def unit_named(name: str) -> Unit:
    """Return a unit by its name; raise RefsimError for an unknown name."""
    return cast("Unit", check_named("unit", name, _UNITS))


def profile(
    target: str,
    unit: Unit,
    a_format: str | ElementType,
    b_format: str | ElementType,
    d_format: str | ElementType,
    k: int | None = None,
) -> Profile:
    """Return the profile of an instruction; `k` chooses where a chip has several (None: the largest K).

    profile("sm_90a", "wgmma", "e4m3", "e4m3", "f32").fraction is 13. Raises RefsimError with the known combinations.
    Source: the profile's.
    """
    name, target = chip(target), target_name(target)
    unit = unit_named(unit)
    if refused := _absent(target, unit):
        raise refused
    rows = _BY_KEY.get((name, unit, str(a_format), str(b_format), str(d_format)), [])
    if rows and k is not None and (length := _longer(target, unit, k)):
        return replace(_of(target, rows[0]), k=(k,), length=length, evidence=_LONG)
    if not rows:
        raise _no_row(name, unit, f"{a_format} x {b_format} -> {d_format}")
    fitting = rows if k is None else [row for row in rows if is_whole(k) and k in row.k]
    if not fitting:
        sizes = sorted({size for row in rows for size in row.k})
        what = f"k={k!r} is not the K of an instruction"
        raise RefsimError("instruction-k", what, rows[0].name, help=f"k: {', '.join(map(str, sizes))}")
    return _of(target, fitting[0])


def _longer(target: str, unit: str, k: int) -> int:
    """Return the products of a step of an instruction with the longer K; 0 if the target lacks it or k is another."""
    numbers, size, length = _LONGER.get(unit, ((), 0, 0))
    return (
        length
        if is_whole(k) and k == size and target.startswith("sm_") and target_named(target).number in numbers
        else 0
    )


def _no_row(target: str, unit: str, types: str) -> RefsimError:
    here = rows_of(target, unit) or rows_of(target)
    known = "; ".join(dict.fromkeys(row.name for row in here))
    what = f"{target} {unit} has no known arithmetic for {types}"
    return RefsimError("unknown-arithmetic", what, help=f"known: {known}")
