"""Conversions as data: what each PTX instruction, CUDA header function or library does to a value, one entry each."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from refsim.conversions.rounding import (
    INFINITY,
    NAN,
    NEAREST_EVEN,
    PTX_ROUNDINGS,
    SATURATE,
    STOCHASTIC,
    TIES_AWAY,
    TOWARD_ZERO,
    ConversionRounding,
    EncodingRule,
    default_nan,
)
from refsim.errors import RefsimError
from refsim.formats import BF16, E2M1, E2M3, E3M2, E4M3, E4M3FNUZ, E5M2, E5M2FNUZ, E8M0, F16, F32, TF32, Format
from refsim.render.cards import Card, Facts
from refsim.sources import (
    COMPRESSED_TENSORS,
    CUDA_HEADERS,
    DEEPGEMM,
    MICROXCALING,
    MIRAGE,
    ML_DTYPES,
    MODELOPT,
    PTX,
    TORCH,
    TORCHAO,
    TRANSFORMER_ENGINE,
    TRITON,
    VLLM,
    Source,
)


@dataclass(frozen=True, repr=False)
class Conversion(Card):
    """Describe one conversion: the formats on both sides and every decision between them.

    `reads` and `to` are the element formats. A register holds `elements` of them, the first operand (or the upper half
    of a packed one) in the most significant place. `overflow` and the NaN codes have the meaning of `EncodingRule`;
    `negative_nan` is None where the sign of a NaN is lost. `random_positions` gives, per element in operand order, the
    bits of the random register that serve it, most significant first. `policy` is the family's name where the entry
    belongs to a library or header instead of an instruction; `since` is the first PTX target that has the instruction.
    With `cut_specials` an infinity or NaN only loses its padding bits and then this constant: cvt.rna.tf32.f32 makes
    0x7f800001 infinite.
    cvt.rn.satfinite.e4m3x2.f32 of (1.0, 2.0) is 0x3840: 0x38 = 1.0 in the upper byte.
    """

    name: str
    to: Format
    reads: Format
    rounding: ConversionRounding
    overflow: str
    nan: int
    source: Source
    negative_nan: int | None = None
    relu: bool = False
    absolute: bool = False
    elements: int = 1
    overrides: tuple[tuple[int, int, int], ...] = ()
    random_positions: tuple[tuple[int, ...], ...] = ()
    policy: str = ""
    since: str = ""
    cut_specials: int | None = None

    @cached_property
    def rule(self) -> EncodingRule:
        """Return the value-to-code rule of one element."""
        negative_nan = self.nan if self.negative_nan is None else self.negative_nan
        return EncodingRule(
            self.to, self.rounding, self.overflow, self.nan, negative_nan, self.absolute, self.relu, self.overrides
        )

    @property
    def operand_count(self) -> int:
        """Return the number of registers read, without random bits: one per element for .f32 sources, else one."""
        return self.elements if self.reads is F32 else 1

    @cached_property
    def result_dtype(self) -> np.dtype[np.unsignedinteger]:
        """Return the unsigned integer type as wide as the result register."""
        return np.dtype(f"u{slot_bits(self.to, self.elements) * self.elements // 8}")

    @cached_property
    def operand_dtype(self) -> np.dtype[np.unsignedinteger]:
        """Return the unsigned integer type as wide as one operand register."""
        return np.dtype(f"u{slot_bits(self.reads, self.elements) * self.elements // 8 // self.operand_count}")

    def _repr_summary(self) -> str:
        return self.name

    def _facts(self) -> Facts:
        yield "reads", self.reads
        yield "writes", self.to
        yield "rounding", self.rounding
        yield "source", self.source


def slot_bits(format: Format, elements: int) -> int:
    """Return the bits of one code in a register of `elements` codes: 4 for packed e2m1, else whole bytes."""
    return 4 if format is E2M1 and elements > 1 else 8 * format.code_dtype.itemsize


_NARROW = (E4M3, E5M2, E2M1, E2M3, E3M2)
_EIGHT_BITS = (E4M3, E5M2)
_RELU = ("", ".relu")
_SATFINITE = ("", ".satfinite")


def _since(format: Format) -> str:
    return "sm_89" if format in _EIGHT_BITS else "sm_100f"


def _cvt(form: str, to: Format, reads: Format, since: str, elements: int = 2, **more: Any) -> Conversion:
    """Return a form of cvt, whose modifiers say how it rounds, where it saturates and whether it is cut at zero."""
    rounding: ConversionRounding = PTX_ROUNDINGS.get(form.split(".", 1)[0], STOCHASTIC)
    overflow = more.pop("overflow", SATURATE if ".satfinite" in form else INFINITY)
    more |= {"relu": ".relu" in form, "elements": elements, "since": since}
    return Conversion(f"cvt.{form}", to, reads, rounding, overflow, default_nan(to), PTX["cvt"], **more)


def _to_narrow() -> Iterator[Conversion]:
    """Yield conversions of f32, f16 and bf16 pairs to FP8, FP6 and FP4: saturation is compulsory."""
    for relu, to, reads in product(_RELU, _NARROW, (F32, F16, BF16)):
        since = _since(to) if reads is F32 or (reads is F16 and to in _EIGHT_BITS) else "sm_100f"
        yield _cvt(f"rn.satfinite{relu}.{to}x2.{reads}{'' if reads is F32 else 'x2'}", to, reads, since)


def _to_scale() -> Iterator[Conversion]:
    """Yield conversions of magnitudes to powers of two; without .satfinite, values beyond 2^127 become NaN."""
    for mode, saturation, reads in product(("rz", "rp"), _SATFINITE, (F32, BF16)):
        form = f"{mode}{saturation}.ue8m0x2.{reads}{'x2' if reads is BF16 else ''}"
        yield _cvt(form, E8M0, reads, "sm_100f", overflow=SATURATE if saturation else NAN, absolute=True)


def _from_narrow() -> Iterator[Conversion]:
    """Yield conversions of packed codes to f16 or bf16 pairs and of scales to bf16 pairs: every value is exact."""
    for relu, reads in product(_RELU, _NARROW):
        yield _cvt(f"rn{relu}.f16x2.{reads}x2", F16, reads, _since(reads))
    for relu, saturation, reads in product(_RELU, _SATFINITE, _NARROW):
        yield _cvt(f"rn{saturation}{relu}.bf16x2.{reads}x2", BF16, reads, "sm_100f")
    yield _cvt("rn.bf16x2.ue8m0x2", BF16, E8M0, "sm_100f")


def _to_half() -> Iterator[Conversion]:
    for mode, relu, saturation, to, elements in product(("rn", "rz"), _RELU, _SATFINITE, (F16, BF16), (1, 2)):
        yield _cvt(f"{mode}{relu}{saturation}.{to}{'x2' if elements == 2 else ''}.f32", to, F32, "sm_80", elements)


def _to_tf32() -> Iterator[Conversion]:
    """Yield conversions to tf32: rna came first and has no .relu; rn and rz take .satfinite only from sm_100.

    ptxas compiles rna to integer instructions, so its infinities and NaNs are cut: measured on an H200.
    """
    shapes = [("rna", saturation, "", "sm_80") for saturation in _SATFINITE]
    shapes += [
        (mode, saturation, relu, "sm_100" if saturation else "sm_90")
        for mode, saturation, relu in product(("rn", "rz"), _SATFINITE, _RELU)
    ]
    for mode, saturation, relu, since in shapes:
        cut = None if mode != "rna" else 0x2000 if saturation else 0
        yield _cvt(f"{mode}{saturation}{relu}.tf32.f32", TF32, F32, since, 1, cut_specials=cut)


def _downward(high: int, count: int) -> tuple[int, ...]:
    return tuple(range(high, high - count, -1))


def _random_positions(to: Format) -> tuple[tuple[int, ...], ...]:
    """Return the bits of the random register that serve each operand, the heaviest first.

    The PTX text says which halves (for e2m1x4: which bytes of both halves) serve which pair of operands. It does not
    say that the first operand of a pair reads its 16 bits in reverse order; that is a public observation on a B200.
    """
    if to in (F16, BF16):
        width = 13 if to is F16 else 16
        return _downward(15 + width, width), _downward(width - 1, width)
    if to is E2M1:
        first, second = _downward(31, 8) + _downward(15, 8), _downward(23, 8) + _downward(7, 8)
    else:
        first, second = _downward(31, 16), _downward(15, 16)
    return first[::-1], first, second[::-1], second


# fmt: off
def _stochastic() -> Iterator[Conversion]:
    for relu, to in product(_RELU, _NARROW):
        yield _cvt(f"rs{relu}.satfinite.{to}x4.f32", to, F32, "sm_100a", 4, random_positions=_random_positions(to))
    for relu, saturation, to in product(_RELU, _SATFINITE, (F16, BF16)):
        yield _cvt(f"rs{relu}{saturation}.{to}x2.f32", to, F32, "sm_100a", random_positions=_random_positions(to))


def _cuda_headers() -> Iterator[Conversion]:
    """Yield the functions of cuda_fp8.h, cuda_fp6.h and cuda_fp4.h, and the constructors of their classes."""
    for (saturation, overflow), reads, to in product(
        (("satfinite", SATURATE), ("nosat", NAN)), (F32, F16, BF16), _EIGHT_BITS
    ):
        beyond = INFINITY if overflow == NAN and to is E5M2 else overflow
        policy, source = f"cuda.{saturation}", CUDA_HEADERS["cuda_fp8.h, __nv_cvt_float_to_fp8"]
        yield Conversion(f"{policy}.{to}.{reads}", to, reads, NEAREST_EVEN, beyond, default_nan(to), source, policy=policy)
    for mode, reads, to in product(("", ".rz"), (F32, F16, BF16), (E2M3, E3M2, E2M1)):
        policy = f"cuda.satfinite{mode}"
        yield Conversion(
            f"{policy}.{to}.{reads}", to, reads, PTX_ROUNDINGS[mode[1:] or "rn"], SATURATE, default_nan(to),
            CUDA_HEADERS["cuda_fp6.h and cuda_fp4.h, __nv_cvt_float_to_fp6"], policy=policy,
        )
    for saturation, mode, reads in product(("satfinite", "nosat"), ("rz", "rp"), (F32, BF16)):
        policy = f"cuda.{saturation}.{mode}"
        yield Conversion(
            f"{policy}.e8m0.{reads}", E8M0, reads, PTX_ROUNDINGS[mode], NAN if saturation == "nosat" else SATURATE,
            0xFF, CUDA_HEADERS["cuda_fp8.h, __nv_cvt_float_to_e8m0"], absolute=True, policy=policy,
        )
    for to in (*_NARROW, E8M0):
        yield Conversion(
            f"cuda.constructor.{to}.f32", to, F32, PTX_ROUNDINGS["rp" if to is E8M0 else "rn"], SATURATE,
            default_nan(to), CUDA_HEADERS["constructors from float"], absolute=to is E8M0, policy="cuda.constructor",
        )
# fmt: on


_SCALE_SUBNORMALS = (0x0041, 0x005F, 1)  # inputs in (2^-127, 1.5 x 2^-127) go up to 2^-126


# fmt: off
def _libraries() -> Iterator[Conversion]:
    """Yield astype of ml_dtypes and .to of torch, from float32; two libraries with equal results have an entry each."""

    def row(
        name: str,
        to: Format,
        overflow: str,
        nans: tuple[int, int],
        *,
        absolute: bool = False,
        overrides: tuple[tuple[int, int, int], ...] = (),
    ) -> Conversion:
        """Return the entry of a library's cast from float32; `nans` are the codes of NaN by its sign."""
        policy = name.split(".", maxsplit=1)[0]
        return Conversion(
            name, to, F32, TIES_AWAY if to is E8M0 else NEAREST_EVEN, overflow, nans[0],
            ML_DTYPES["casts from float32"] if policy == "ml_dtypes" else TORCH["Tensor.to from float32"],
            negative_nan=nans[1], absolute=absolute, overrides=overrides, policy=policy,
        )

    yield row("ml_dtypes.e4m3fn", E4M3, NAN, (0x7F, 0xFF))
    yield row("ml_dtypes.e5m2", E5M2, INFINITY, (0x7E, 0xFE))
    yield row("ml_dtypes.e4m3fnuz", E4M3FNUZ, NAN, (0x80, 0x80))
    yield row("ml_dtypes.e5m2fnuz", E5M2FNUZ, NAN, (0x80, 0x80))
    for to in (E2M1, E2M3, E3M2):
        yield row(f"ml_dtypes.{to}fn", to, SATURATE, (to.sign_mask, 0))
    not_positive = ((0x0000, 0x0000, 0xFF), (0x8000, 0xFFFF, 0xFF))
    yield row("ml_dtypes.e8m0fnu", E8M0, NAN, (0xFF, 0xFF), overrides=(_SCALE_SUBNORMALS, *not_positive))

    yield row("torch.float8_e4m3fn", E4M3, SATURATE, (0x7F, 0xFF))
    yield row("torch.float8_e5m2", E5M2, INFINITY, (0x7F, 0xFF))
    yield row("torch.float8_e4m3fnuz", E4M3FNUZ, NAN, (0x80, 0x80))
    yield row("torch.float8_e5m2fnuz", E5M2FNUZ, NAN, (0x80, 0x80))
    yield row(
        "torch.float8_e8m0fnu", E8M0, NAN, (0xFF, 0xFF), absolute=True,
        overrides=(_SCALE_SUBNORMALS, (0x8041, 0x805F, 1)),
    )


def _triton() -> Iterator[Conversion]:
    """Return the casts of Triton 3.9 from float32 on NVIDIA targets; E4M3 needs sm_89.

    A cast to fp8e4nv or fp8e5 saturates infinity too: inf.to(tl.float8e5) is 57344. With fp_downcast_rounding="rtz" an infinity
    stays one in fp8e5; fp8e4nv has no such cast. Triton refuses fp8e4b8 and fp8e5b16 on these targets.
    """
    source = TRITON["triton.language.cast, fp_downcast_rounding"]
    for to in (E4M3, E5M2):
        yield Conversion(f"triton.{to}", to, F32, NEAREST_EVEN, SATURATE, default_nan(to), source, policy="triton")
    yield Conversion("triton.rtz.e5m2", E5M2, F32, TOWARD_ZERO, INFINITY, 0x7F, source, policy="triton.rtz")
# fmt: on


_MINUS_ZERO_LOST = ((0x8000, 0x8000, 0),)
_TIES_OF_E2M1 = (0x3E80, 0x3F40, 0x3FA0, 0x3FE0, 0x4020, 0x4060, 0x40A0)  # 0.25, 0.75 .. 5, between code and code + 1


def _payloads(to: Format) -> tuple[tuple[int, int, int], ...]:
    """Return the overrides for NaN inputs of torchao.

    torchao rounds the bits of a NaN like a number's and keeps the lowest byte: 0x7fc00000 is e2m1 3, e3m2 0xe.
    """
    shift, found = F32.mantissa_bits - to.mantissa_bits, []
    for pattern in range(0x7F81, 0x8000):
        bits = pattern << 16
        rounded = bits + ((to.bias - F32.bias) << F32.mantissa_bits) + (1 << shift - 1) - 1 + (bits >> shift & 1)
        code = rounded >> shift & 0xFF
        found += [(pattern, pattern, code), (pattern | 0x8000, pattern | 0x8000, code | to.sign_mask)]
    return tuple(found)


# fmt: off
def _quantizers() -> Iterator[Conversion]:
    """Yield the element conversions of block quantizers after scaling; they clamp to the largest value first."""
    clamped = TORCHAO["prototype/mx_formats, clamp and Tensor.to"]
    unpacked = TORCHAO["prototype/custom_fp_utils.py, _f32_to_floatx_unpacked"]
    for to in (E4M3, E5M2):
        yield Conversion(f"torchao.{to}", to, F32, NEAREST_EVEN, SATURATE, 0x7F, clamped, negative_nan=0xFF, policy="torchao")
    for to in (E2M1, E2M3, E3M2):
        nan, bits = default_nan(to), _payloads(to)
        yield Conversion(f"torchao.{to}", to, F32, NEAREST_EVEN, SATURATE, nan, unpacked, overrides=bits, policy="torchao")
    lower = tuple((tie | sign, tie | sign, code | sign >> 12) for sign in (0, 0x8000)
                  for code, tie in enumerate(_TIES_OF_E2M1))
    no_sign = (*(each for each in lower if each[0] != 0xBE80), (0x8000, 0xBE80, 0))
    cast = COMPRESSED_TENSORS["quantization/lifecycle/forward.py, x / scale + 0.0 and the cast"]
    emulated = MICROXCALING["mx/elemwise_ops.py, _quantize_elemwise_core"]
    mx: dict[str, ConversionRounding] = {"": TIES_AWAY, "_even": NEAREST_EVEN, "_floor": TOWARD_ZERO}
    for policy, to, nan, overrides, source in (
        ("deepgemm", E2M1, 0, no_sign, DEEPGEMM["utils/math.py, _quantize_to_fp4_e2m1"]),
        *((f"microxcaling{name}", to, default_nan(to), _MINUS_ZERO_LOST, emulated) for name in mx
          for to in (E4M3, E5M2, E2M3, E3M2, E2M1)),
        ("modelopt", E2M1, 7, _MINUS_ZERO_LOST, MODELOPT["qtensor/nvfp4_tensor.py, NVFP4QTensor._cast_fp4"]),
        ("modelopt_mx", E2M1, 8, (*lower, (0, 0, 8)), MODELOPT["qtensor/mxfp4_tensor.py, MXFP4QTensor.quantize"]),
        ("te_reference", E2M1, 0, _MINUS_ZERO_LOST, TRANSFORMER_ENGINE["reference_nvfp4.py, cast_to_fp4x2"]),
        ("compressed_tensors", E2M1, 0, _MINUS_ZERO_LOST, cast),
        ("compressed_tensors", E2M3, 0x1F, _MINUS_ZERO_LOST, cast),
        ("compressed_tensors", E4M3, 0x7F, _MINUS_ZERO_LOST, cast),
    ):
        rounding = mx.get(policy.removeprefix("microxcaling"), NEAREST_EVEN)
        yield Conversion(f"{policy}.{to}", to, F32, rounding, SATURATE, nan, source, overrides=overrides, policy=policy)
# fmt: on


_ABOVE_ZERO = 0x3C00  # bf16 2^-7, which the bits of E4M3 zero become when its exponent is raised by 120


# fmt: off
def _weight_decoders() -> Iterator[Conversion]:
    """Yield conversions of E4M3 weights to bf16 in registers, for targets below sm_89, which have no cvt.

    Every value of E4M3 is a bf16. Mirage adds 120 to the exponent field of every code. Codes with exponent field 0 and
    NaN are then wrong, 18 in all: zero becomes 2^-7, the subnormal m * 2^-9 becomes (1 + m/8) * 2^-7, NaN becomes 480.
    Marlin shifts the code into place and multiplies by 2^120, which is right except that NaN becomes 480.
    """
    small = E4M3.table[: 1 << E4M3.mantissa_bits].astype(np.float32).view(np.uint32) >> 16
    raised = [(int(pattern), _ABOVE_ZERO + (place << 4)) for place, pattern in enumerate(small)]
    wrong = tuple((at | sign, at | sign, code | sign) for sign in (0, BF16.sign_mask) for at, code in raised)
    for policy, overrides, nan, source in (
        ("exact", (), default_nan(BF16), CUDA_HEADERS["cuda_fp8.h, __nv_fp8_e4m3 to __nv_bfloat16"]),
        ("marlin", (), 0x43F0, VLLM["gptq_marlin/dequant.h, dequant of kFE4M3fn to nv_bfloat162"]),
        ("mirage", wrong, 0x43F0, MIRAGE["linear_fp8_weight, fp8x2 to bf16x2"]),
    ):
        negative_nan = None if policy == "exact" else nan | BF16.sign_mask
        yield Conversion(
            f"{policy}.bf16.e4m3", BF16, E4M3, NEAREST_EVEN, INFINITY, nan, source, negative_nan=negative_nan,
            overrides=overrides, policy=policy,
        )
# fmt: on


_FAMILIES = (
    *(_to_narrow, _to_scale, _from_narrow, _to_half, _to_tf32, _stochastic),
    *(_cuda_headers, _libraries, _triton, _quantizers, _weight_decoders),
)
CONVERSIONS: dict[str, Conversion] = {row.name: row for family in _FAMILIES for row in family()}


def conversion_named(name: str) -> Conversion:
    """Return the entry of an instruction or policy; .relu and .satfinite may be in either order, as ptxas allows.

    conversion_named("cvt.rn.satfinite.e4m3x2.f32").elements is 2. Raises RefsimError `unknown-name`.
    Source: the entry's.
    """
    one, other = ".relu.satfinite", ".satfinite.relu"
    for spelling in (name, name.replace(one, other), name.replace(other, one)):
        if spelling in CONVERSIONS:
            return CONVERSIONS[spelling]
    what = f"no conversion is called {name[:100]!r}"
    raise RefsimError("unknown-name", what, help=f"nearest: {', '.join(_alike(name))}")


def _alike(name: str) -> list[str]:
    """Return the three conversions that share most parts with a name; types count more, and e4m3x2 equals e4m3."""

    def parts(spelled: str) -> list[str]:
        return [re.sub(r"^float[0-9]_|(?<=[0-9])(x[24]|fnu?z?)$", "", part) for part in spelled.split(".")]

    asked = parts(name.lower()[:200])

    def apart(other: str) -> tuple[int, float]:
        there = parts(other)
        weight = sum(1 if each in _MODIFIERS else 3 for each in {*asked} ^ {*there}) + 2 * (asked[-1] != there[-1])
        return weight, -SequenceMatcher(None, name, other).ratio()

    return sorted(CONVERSIONS, key=apart)[:3]


_MODIFIERS = {*PTX_ROUNDINGS, "rs", "satfinite", "relu", "nosat", "constructor"}
