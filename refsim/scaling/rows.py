"""How the scale of a group is stored: one entry for each kind that a quantizer writes and a GEMM reads."""

from dataclasses import dataclass
from typing import Literal

from refsim.errors import named
from refsim.formats import E8M0, F32, Format
from refsim.render.cards import FieldsCard
from refsim.sources import DEEPGEMM, Source

ScaleKindName = Literal["f32", "f32_power", "e8m0"]
Quotient = Literal["reciprocal", "divide"]
NanRule = Literal["spreads", "ignored"]

QUOTIENTS: tuple[Quotient, ...] = ("reciprocal", "divide")
NAN_RULES: tuple[NanRule, ...] = ("spreads", "ignored")


@dataclass(frozen=True, repr=False)
class ScaleKind(FieldsCard):
    """The stored form of a scale: its format, and whether it is rounded up to a power of two before the division."""

    name: str
    format: Format
    is_power_of_two: bool
    summary: str
    source: Source

    def __str__(self) -> str:
        return self.name


_CAST = DEEPGEMM["per_token_cast_to_fp8 and per_block_cast_to_fp8"]
SCALE_KINDS = (
    ScaleKind("f32", F32, False, "fl(amax / MAX) as it is", _CAST),
    ScaleKind("f32_power", F32, True, "fl(amax / MAX) rounded up to a power of two, float32, as sm_90 reads it", _CAST),
    ScaleKind("e8m0", E8M0, True, "f32_power as its biased exponent, one byte, 1 to 254", _CAST),
)
_BY_NAME = {row.name: row for row in SCALE_KINDS}


def scale_kind(name: str | ScaleKind) -> ScaleKind:
    """Return the scale kind of a name, or the given `ScaleKind` itself.

    len(scale_kind("e8m0").name) is 4. Raises RefsimError `unknown-name`, with the nearest name. Source: the
    entry's.
    """
    return name if isinstance(name, ScaleKind) else named("scale kind", name, _BY_NAME)
