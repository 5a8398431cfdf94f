"""The result of probing an instruction: its parameters, for a comparison with a profile or as a new profile."""

from dataclasses import dataclass, replace

from refsim.conversions.rounding import NEAREST_EVEN, TOWARD_ZERO
from refsim.formats import F16, F32, ElementType
from refsim.numerics.methods import ASCENDING, BYTE_PAIRS, CEnters, Order
from refsim.numerics.roundings import RNE_F16, RNE_F32, RZ_E8M13, RZ_F32, Rounding
from refsim.numerics.rows import Profile

AWAY, NEAREST_TIES_AWAY, NEAREST_TIES_ZERO, TO_ODD = (
    "away-from-zero",
    "nearest, ties away",
    "nearest, ties to zero",
    "to-odd",
)
_ROUNDINGS: dict[tuple[str, int, ElementType], Rounding] = {
    (TOWARD_ZERO, 23, F32): RZ_F32,
    (TOWARD_ZERO, 13, F32): RZ_E8M13,
    (NEAREST_EVEN, 23, F32): RNE_F32,
    (NEAREST_EVEN, 10, F16): RNE_F16,
}


@dataclass(frozen=True)
class Discovery:
    """The probed parameters of one instruction of a given K; None where its operands cannot show the parameter.

    `steps`: the places of K that are added together, in order; `c_enters` early or late; `fraction`: bits kept below
    the largest exponent; `direction` and `kept`: the rounding of a sum and the fraction bits it keeps; `zero_exponent`:
    the least exponent that a step aligns to when one of its terms is zero; `unseen`: reasons for None. Hopper's FP8
    wgmma: one step of 32, early, 13, toward-zero, 13, None.
    """

    k: int
    d_format: ElementType
    steps: tuple[tuple[int, ...], ...] | None = None
    c_enters: CEnters | None = None
    fraction: int | None = None
    direction: str | None = None
    kept: int | None = None
    zero_exponent: int | None = None
    unseen: tuple[str, ...] = ()

    @property
    def length(self) -> int | None:
        """Return the number of products of one step, where all steps are equally long."""
        sizes = {len(step) for step in self.steps or ()}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def order(self) -> Order | str | None:
        """Return ascending, byte-pairs, or "other"; None without steps."""
        if self.steps is None or self.length is None:
            return None
        if list(self.steps) == [tuple(range(i, i + self.length)) for i in range(0, self.k, self.length)]:
            return ASCENDING
        halves = [tuple(i for i in range(self.k) if i % 4 // 2 == half) for half in (0, 1)]
        return BYTE_PAIRS if list(self.steps) == halves else "other"

    @property
    def rounding(self) -> Rounding | str | None:
        """Return the rounding of `refsim.numerics.roundings`, or a description of another rounding."""
        if self.direction is None or self.kept is None:
            return None
        row = _ROUNDINGS.get((self.direction, self.kept, self.d_format))
        return row or f"{self.direction} to {self.kept} bits"

    def parameters(self) -> dict[str, str | int | None]:
        """Return the parameters by name, as plain values."""
        return {
            "length": self.length,
            "order": _plain(self.order),
            "c_enters": _plain(self.c_enters),
            "fraction": self.fraction,
            "rounding": _plain(self.rounding),
            "zero_exponent": self.zero_exponent,
        }

    def __str__(self) -> str:
        """Return the known parameters in a line."""
        signs = {"length": "L", "fraction": "F", "zero_exponent": "zero exponent", "c_enters": "C"}
        seen = {signs.get(key, key): value for key, value in self.parameters().items() if value is not None}
        return ", ".join(f"{name} = {value}" for name, value in seen.items())

    def contradicts(self, row: Profile) -> list[str]:
        """Return the parameters that differ from a profile's, as "fraction 13, not 25"."""
        said: dict[str, str | int | None] = {
            "length": len(row.steps(self.k)[0]),
            "order": str(row.order),
            "c_enters": str(row.c_enters),
            "fraction": row.fraction,
            "rounding": str(row.rounding),
            "zero_exponent": row.zero_exponent,
        }
        if self.steps is not None and len(self.steps) == 1:
            del said["order"]
        seen = self.parameters()
        return [
            f"{name} {seen[name]}, not {value}"
            for name, value in said.items()
            if seen[name] is not None and seen[name] != value
        ]

    def as_profile(self, like: Profile) -> Profile | None:
        """Return a profile with these parameters, completed from `like`, or None where no profile can express them."""
        order, rounding = self.order or like.order, self.rounding or like.rounding
        if not isinstance(order, Order) or not isinstance(rounding, Rounding):
            return None
        length = self.length or like.length
        fraction = like.fraction if self.fraction is None else self.fraction
        zero = like.zero_exponent if self.zero_exponent is None else self.zero_exponent
        if fraction is None or zero is None or not like.method.parametrised:
            return None
        return replace(
            like,
            length=length,
            order=order,
            rounding=rounding,
            fraction=fraction,
            zero_exponent=zero,
            c_enters=self.c_enters or like.c_enters,
        )


def _plain(parameter: object) -> str | None:
    return None if parameter is None else str(parameter)
