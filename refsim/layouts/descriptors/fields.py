"""Descriptors as tables of bit fields: one decode, encode and explain works for all of them."""

from collections.abc import Callable
from dataclasses import dataclass

from refsim.errors import RefsimError, check_named, unknown
from refsim.evidence import Evidence
from refsim.layouts.evidence import evidence as evidence_of
from refsim.render.cards import Card, Facts, FieldsCard
from refsim.sources import Source

Value = int | str
Fields = dict[str, Value]
Rule = Callable[[Fields], str | None]


@dataclass(frozen=True)
class Field:
    """Describe `width` bits from bit `low`: the value is the stored number times `unit`, or its name in `names`.

    start_address of wgmma-smem is 14 bits from bit 0 in units of 16 bytes: 0x40 stored is byte 1024. `default` is the
    value that encode writes when the field is left out, None if it must be given; `fixed` bits always hold their
    default. `allowed` narrows the values of a field without names.
    """

    name: str
    low: int
    width: int
    meaning: str
    unit: int = 1
    names: tuple[tuple[int, Value], ...] = ()
    default: Value | None = 0
    fixed: bool = False
    allowed: range | None = None

    @property
    def bits(self) -> str:
        """Return the bits as messages write them: "bits 0..13", "bit 52"."""
        high = self.low + self.width - 1
        return f"bits {self.low}..{high}" if self.width > 1 else f"bit {self.low}"

    def stored(self, word: int) -> int:
        """Return the number that the field's bits hold."""
        return word >> self.low & (1 << self.width) - 1

    def value(self, stored: int) -> Value:
        """Return the value of a stored number: a name, a multiple of the unit, or the number if it has no name."""
        return dict(self.names).get(stored, stored) if self.names else stored * self.unit

    def code(self, value: Value, where: str) -> int:
        """Return the stored number for a value; raise RefsimError with the bits, the quantum and the range."""
        if self.names:
            return self._named(value, where)
        if not isinstance(value, int):
            raise RefsimError("bad-descriptor", f"{self.name} is a number, not {value!r}", where=self._at(where))
        limit = (1 << self.width) - 1
        if value % self.unit:
            what, rule = (
                f"{self.name} {value} is not a multiple of {self.unit}",
                f"{self.bits} hold {self.name} / {self.unit}",
            )
            below = value - value % self.unit
            raise RefsimError("bad-descriptor", what, self._at(where), rule, f"{below} or {below + self.unit}")
        if not 0 <= value // self.unit <= limit or (self.allowed is not None and value not in self.allowed):
            legal = self.allowed or range(0, limit * self.unit + 1, self.unit)
            what = f"{self.name} {value} is outside {legal.start}..{legal[-1]}, steps of {legal.step}"
            rule = f"{self.bits} hold at most {limit}" + (f" units of {self.unit}" if self.unit > 1 else "")
            raise RefsimError("out-of-range", what, where=self._at(where), rule=rule)
        return value // self.unit

    def complaint(self, stored: int) -> str | None:
        """Return what is wrong with a stored number, or None."""
        if self.fixed and stored != self.default:
            return f"{self.bits} ({self.name}) must hold {self.default}, not {stored}"
        if self.names and stored not in dict(self.names):
            return f"{self.bits} ({self.name}) hold {stored}, which has no meaning"
        if self.allowed is not None and stored * self.unit not in self.allowed:
            return (
                f"{self.bits} ({self.name}) hold {stored * self.unit}, outside {self.allowed.start}..{self.allowed[-1]}"
            )
        return None

    def _named(self, value: Value, where: str) -> int:
        for code, name in self.names:
            if value == name:
                return code
        if isinstance(value, str):
            raise unknown(self.name.replace("_", " "), value, [str(name) for _, name in self.names], where=where)
        choices = ", ".join(str(name) for _, name in self.names)
        raise RefsimError("bad-descriptor", f"{self.name} {value!r} is none of {choices}", where=self._at(where))

    def _at(self, where: str) -> str:
        return f"{where}, {self.bits}"


@dataclass(frozen=True)
class Reading:
    """Describe one field of a descriptor: its bits, the stored number, the value and its meaning."""

    bits: str
    name: str
    stored: int
    value: Value
    meaning: str


@dataclass(frozen=True, repr=False)
class Explanation(FieldsCard):
    """Describe a descriptor in text: its fields in bit order, remarks, and its problems (empty, if legal)."""

    kind: str
    word: str
    readings: tuple[Reading, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    source: Source

    def __str__(self) -> str:
        names = max((len(reading.name) for reading in self.readings), default=0)
        bits = max((len(reading.bits) for reading in self.readings), default=0)
        lines = [f"{self.kind} {self.word}"]
        lines += [f"  {row.bits:<{bits}}  {row.name:<{names}}  {row.value}: {row.meaning}" for row in self.readings]
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  problem: {problem}" for problem in self.problems]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class Descriptor(Card):
    """Describe a descriptor of `bits` bits. `rules` check fields together and return errors; `remarks` return notes.

    wgmma-smem: encode(start_address=1024, swizzle="128B", stride_byte_offset=1024) is 0x4000004000000040.
    Bits that no field covers are reserved and must be 0.
    """

    kind: str
    bits: int
    fields: tuple[Field, ...]
    source: Source
    summary: str
    rules: tuple[Rule, ...] = ()
    remarks: tuple[Rule, ...] = ()
    operand_of: str | None = None

    def __hash__(self) -> int:
        return hash(self.kind)

    @property
    def evidence(self) -> Evidence:
        """Return the evidence for the descriptor: its formula, an independent package, or a run on a chip."""
        return evidence_of(self.kind)

    def decode(self, word: int) -> Fields:
        """Return field name to value without fixed bits; any number of the right width is decoded, legal or not.

        decode(0x4000004000000040)["start_address"] is 1024 for wgmma-smem. A code without a name stays a number;
        `problems` reports what is wrong. Raises RefsimError for anything except an integer of `bits` bits.
        """
        self._check_word(word)
        return {field.name: field.value(field.stored(word)) for field in self.fields if not field.fixed}

    def encode(self, **values: Value) -> int:
        """Return the descriptor with these values; fields left out take their default.

        Raises RefsimError for unknown or missing fields, values off their quantum or range (with the bits), and
        combinations that hardware does not have.
        """
        open_fields = {field.name: field for field in self.fields if not field.fixed}
        for name in values:
            check_named("descriptor field", name, open_fields, where=self.kind)
        word = 0
        for field in self.fields:
            value = values.get(field.name, field.default)
            if value is None:
                raise RefsimError("bad-descriptor", f"{field.name} is needed", where=f"{self.kind}, {field.bits}")
            word |= field.code(value, self.kind) << field.low
        for rule in self.rules:
            if complaint := rule(self.decode(word)):
                what = f"the fields contradict each other: {complaint}"
                raise RefsimError("bad-descriptor", what, where=self.kind, rule=str(self.source))
        return word

    def problems(self, word: int) -> tuple[str, ...]:
        """Return what hardware does not accept: reserved bits, codes without meaning, combinations. Empty if legal."""
        self._check_word(word)
        found = [field.complaint(field.stored(word)) for field in self.fields]
        covered = sum((1 << field.width) - 1 << field.low for field in self.fields)
        for low, width in _runs(word & ~covered):
            found.append(f"reserved {Field('', low, width, '').bits} must be 0")
        found += [rule(self.decode(word)) for rule in self.rules]
        return tuple(complaint for complaint in found if complaint)

    def explain(self, word: int) -> Explanation:
        """Explain the descriptor field by field; str() prints it."""
        fields = self.decode(word)
        readings = tuple(
            Reading(field.bits, field.name, field.stored(word), field.value(field.stored(word)), field.meaning)
            for field in sorted(self.fields, key=lambda field: field.low)
        )
        notes = tuple(note for remark in self.remarks if (note := remark(fields)))
        return Explanation(
            self.kind, f"{word:#0{self.bits // 4 + 2}x}", readings, notes, self.problems(word), self.source
        )

    def _check_word(self, word: int) -> None:
        if not isinstance(word, int) or not 0 <= word < 1 << self.bits:
            shown = hex(word) if isinstance(word, int) else repr(word)
            raise RefsimError("bad-descriptor", f"{shown} is no {self.bits}-bit word", where=self.kind)

    def _repr_summary(self) -> str:
        return f"{self.kind}: {self.bits} bits"

    def _facts(self) -> Facts:
        for each in self.fields:
            yield each.name, f"bits {each.low} to {each.low + each.width - 1}: {each.meaning}"


def _runs(mask: int) -> list[tuple[int, int]]:
    """Return the low bit and length of each run of ones, lowest first: 0b1101 gives (0, 1), (2, 2)."""
    runs, low = [], 0
    while mask >> low:
        if mask >> low & 1:
            width = (~(mask >> low) & (mask >> low) + 1).bit_length() - 1
            runs.append((low, width))
            low += width
        else:
            low += 1
    return runs
