"""How a sum becomes the output: rounded once or twice, in which direction, overflow, flushed subnormals."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.ways import Cause, Codes, DoesNotApplyError, Family, subnormals_flushed
from refsim.conversions import OVERFLOWS, ROUNDINGS, RoundingName, decode, encode
from refsim.conversions.rounding import TIES_AWAY
from refsim.errors import RefsimError
from refsim.formats import BF16, F16, F32, FORMATS, TF32, Format, Overflow
from refsim.sources import FNUZ, IEEE754, PTX


@dataclass(frozen=True)
class Writing:
    """The conversion of values to codes: first to a narrower format `via`, then with `rounding` and `overflow`.

    `flushes`: subnormals of the output become zeros. `coded`: the codes are those of another format.
    """

    rounding: RoundingName = ROUNDINGS[0]
    via: Format | None = None
    via_rounding: RoundingName = ROUNDINGS[0]
    overflow: Overflow | None = None
    flushes: bool = False
    coded: Format | None = None

    def codes(self, values: NDArray[Any], format: Format) -> Codes:
        """Return the codes of values. Raises DoesNotApplyError where the format has no such overflow."""
        if self.via is not None:
            values = decode(encode(values, self.via, self.via_rounding), self.via, values.dtype)
        try:
            codes = encode(values, self.coded or format, self.rounding, self.overflow)
        except RefsimError:
            raise DoesNotApplyError from None
        if self.flushes:
            codes = subnormals_flushed(np.asarray(codes), format)
        return np.asarray(codes)

    def __str__(self) -> str:
        words = [f"rounded {self.rounding}"]
        if self.via is not None:
            words.insert(0, f"rounded to {self.via} {self.via_rounding} first")
        if self.overflow is not None:
            words.append(f"{self.overflow} beyond the range")
        if self.flushes:
            words.append("subnormals flushed")
        if self.coded is not None:
            words.append(f"in codes of {self.coded}")
        return ", ".join(words)


USUAL_WRITING = Writing()


def writing_causes(format: Format, wide: Format = F32) -> Iterator[Cause]:
    """Yield the causes in how values of the format `wide` are written."""
    cvt, modes = PTX["cvt"], IEEE754["section 4.3"]
    yield Cause(Family.ROUNDING, f"{format} is rounded to nearest even, once", "written", USUAL_WRITING, modes, 0)
    if format.mantissa_bits < wide.mantissa_bits:
        for rounding in ROUNDINGS[1:]:
            family = Family.TIES if rounding == TIES_AWAY else Family.ROUNDING
            yield Cause(family, f"{format} is rounded {rounding}", "written", Writing(rounding), modes)
    for via in (BF16, F16, TF32):
        least = -1 if format is wide else format.mantissa_bits
        if least < via.mantissa_bits < wide.mantissa_bits:
            says = f"a value is rounded to {via} before it is written in {format}"
            yield Cause(Family.DOUBLE_ROUNDING, says, "written", Writing(via=via), modes)
            cut = Writing(via=via, via_rounding="toward-zero")
            yield Cause(Family.DOUBLE_ROUNDING, f"{says}, the first time toward zero", "written", cut, modes, 3)
    for overflow in OVERFLOWS:
        if overflow != format.overflow:
            says = f"{overflow} beyond the range of {format}"
            yield Cause(Family.SATURATION, says, "written", Writing(overflow=overflow), cvt)
    for other in FORMATS:
        if other is format or other.code_bits != format.code_bits or not other.signed or not other.mantissa_bits:
            continue
        fields = (other.exponent_bits, other.mantissa_bits) == (format.exponent_bits, format.mantissa_bits)
        family, says = Family.FNUZ if fields else Family.FORMAT, f"{other} is written, not {format}"
        yield Cause(family, says, "written", Writing(coded=other), FNUZ["table 1"], 1 if fields else 3)
    if format.exponent_bits and format.mantissa_bits:
        yield Cause(Family.FLUSHED, f"subnormals of {format} are zeros", "written", Writing(flushes=True), PTX["ftz"])
