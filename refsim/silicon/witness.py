"""The comparison of a launch's instructions with recorded hardware: counts, as verdicts hold and print them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

_KINDS = ("tensor core", "conversions", "special functions", "arithmetic", "copy engine")
TENSOR_CORE, CONVERSION, FUNCTION, ARITHMETIC, COPY_ENGINE = _KINDS
RECORDED_TARGET = "sm_90a"
RECORDED, PUBLISHED, DEFINITION = "recorded", "published", "definition"


@dataclass(frozen=True)
class Replay:
    """The comparison of one instruction with its recording: `words` results of a `chip` were replayed, `differing`
    differ.

    `digested` of the results were compared by digests, where one difference stands for 65,536 results or more. Without
    a `chip` there are no hardware results, and `evidence` says what the result rests on instead. `judge` says what the
    model was compared with: results recorded here, published results, or a slow second definition, of which `words` are
    dot products; "" for nothing. mma.sync.bf16 of a launch on sm_90a has 417,318 results of an NVIDIA H200.
    """

    kind: str
    instruction: str
    target: str
    chip: str = ""
    words: int = 0
    digested: int = 0
    differing: int = 0
    evidence: str = ""
    judge: str = ""

    @property
    def counted(self) -> str:
        """Return the results and how many differ: "417,318 recorded results of an H200, 0 differ"."""
        if self.judge == DEFINITION:
            return f"{self.words:,} dot products by a slow second definition, {self.differing:,} differ"
        least = "at least " if self.differing and self.digested else ""
        elsewhere = "" if self.target == RECORDED_TARGET or self.kind == TENSOR_CORE else f" ({RECORDED_TARGET})"
        named = (each.removeprefix("NVIDIA ") for each in self.chip.split(" and "))
        chips = " and ".join(f"{'a' if each[0] in 'BV' else 'an'} {each}" for each in named)
        judge = self.judge or RECORDED
        return f"{self.words:,} {judge} results of {chips}{elsewhere}, {least}{self.differing:,} differ"


@dataclass(frozen=True)
class SiliconWitness:
    """The comparisons of all instructions of some launches; `absent` says why nothing could be replayed."""

    replays: tuple[Replay, ...] = ()
    absent: str = ""

    @property
    def differing(self) -> tuple[Replay, ...]:
        """Return the replays with differences."""
        return tuple(each for each in self.replays if each.differing)

    @property
    def words(self) -> int:
        """Return the number of hardware results that were replayed."""
        return sum(each.words for each in self.replays if each.chip)

    @property
    def judges(self) -> tuple[str, ...]:
        """Return what the model was compared with, of RECORDED, PUBLISHED and DEFINITION."""
        found = {each.judge or RECORDED for each in self.replays if each.words}
        return tuple(each for each in (RECORDED, PUBLISHED, DEFINITION) if each in found)

    def joined(self, other: "SiliconWitness") -> "SiliconWitness":
        """Return the union of both, each instruction once."""
        return SiliconWitness(tuple(dict.fromkeys((*self.replays, *other.replays))), self.absent or other.absent)

    def lines(self) -> list[str]:
        """Return one line for each kind of instruction: tensor cores and differences one by one, others together."""
        if self.absent:
            return [f"recorded hardware: {self.absent}"]
        known = sorted(self.replays, key=lambda each: (_KINDS.index(each.kind), each.chip, each.instruction))
        alone: dict[tuple[str, str, str, str], list[Replay]] = {}
        for each in known:
            if each.kind == TENSOR_CORE or each.differing:
                alone.setdefault((each.instruction, each.target, each.chip, each.evidence), []).append(each)
        lines = [f"{group[0].kind}: {_named(_total(group))}" for group in alone.values()]
        rest = [each for each in known if each.chip and each.kind != TENSOR_CORE and not each.differing]
        for (kind, _, _), members in groupby(rest, key=lambda each: (each.kind, each.chip, each.target)):
            lines.append(_together(kind, list(members)))
        if missing := [each.instruction for each in known if not each.chip and each.kind != TENSOR_CORE]:
            lines.append(f"no recording: {', '.join(missing)}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return plain dictionaries, lists, numbers and strings; `from_json` returns an equal one."""
        return {"words": self.words, "absent": self.absent, "replays": [asdict(each) for each in self.replays]}

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> "SiliconWitness":
        """Return the object that `to_json` wrote; raise TypeError or KeyError for anything else."""
        return SiliconWitness(tuple(Replay(**each) for each in record["replays"]), str(record["absent"]))


def _total(group: list[Replay]) -> Replay:
    """Return one replay for instructions of one name, such as two K of an mma."""
    words, digested, differing = (
        sum(getattr(each, name) for each in group) for name in ("words", "digested", "differing")
    )
    return replace(group[0], words=words, digested=digested, differing=differing)


def _named(each: Replay) -> str:
    name = f"{each.instruction} {each.target}" if each.kind == TENSOR_CORE else each.instruction
    if each.chip:
        return f"{name}, {each.counted}"
    if each.judge:
        return f"{name}, {each.counted}; {each.evidence}"
    return f"{name}, no recording, {each.evidence or 'no model that is known'}"


def _together(kind: str, group: list[Replay]) -> str:
    name = group[0].instruction if len(group) == 1 else f"{len(group)} instructions"
    return f"{kind}: {name}, {_total(group).counted}"
