"""How a group's scale is kept: one row for each kind that a quantiser writes and a GEMM reads."""

from dataclasses import dataclass
from typing import Literal

from refsim.errors import unknown
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
    """A scale as it is stored: its format, and whether it is rounded up to a power of two before it divides anything."""

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
    ScaleKind("f32_power", F32, True, "that, rounded up to a power of two, still float32: what sm_90 reads", _CAST),
    ScaleKind("e8m0", E8M0, True, "the same power of two as its biased exponent, one byte, 1 to 254", _CAST),
)
_BY_NAME = {row.name: row for row in SCALE_KINDS}


def scale_kind(name: str | ScaleKind) -> ScaleKind:
    """The row of a name, or the row itself; an unknown name is an error with the nearest.

    len(scale_kind("e8m0").name) is 4. Raises RefsimError `unknown-scale-kind`. Source: the row's.
    """
    if isinstance(name, ScaleKind):
        return name
    if str(name) not in _BY_NAME:
        raise unknown("scale kind", str(name), list(_BY_NAME))
    return _BY_NAME[str(name)]
