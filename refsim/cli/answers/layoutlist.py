"""The list of all layouts with their evidence: names alone, or grouped where they differ in N, a count or an operand."""

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import pairwise

from refsim.errors import unknown
from refsim.evidence import Evidence
from refsim.layouts.evidence import evidence as evidence_of
from refsim.layouts.families import FAMILIES, family_of, fragment, fragments, meant_by
from refsim.render import Cell, Column, Document, Table
from refsim.sources import Source

GATHERED = (
    Column("kind", strong=True),
    Column("layout"),
    Column("varying", label="where", drop=3),
    Column("count", align="right", drop=2),
    Column("level", drop=4),
    Column("evidence"),
    Column("source", citation=True),
)
NAMES = (
    Column("layout", strong=True),
    Column("shape"),
    Column("threads", align="right", drop=2),
    Column("values", align="right", drop=2),
    Column("since", drop=3),
    Column("evidence", drop=1),
    Column("source", citation=True),
)
# a part of a name that varies without changing the formula, and the letter that stands for it
_VARYING = (
    (re.compile(r"(?<=^wgmma\.m64n)\d+"), "N"),
    (re.compile(r"(?<=^tcgen05\.n)\d+"), "N"),
    (re.compile(r"(?<=^tcgen05\.m)(?<!\d)(\d+n)\d+"), "N"),
    (re.compile(r"(?<=\.x)\d+(?=\.|$)"), "R"),
)
_OPERAND = re.compile(r"(?<=\.)(sfa|sfb|meta|[abcd])(?=\.|$)")
_SELECTOR = re.compile(r"\.byte\d(\.thread\d)?$|\.id\d$|\.sel\d$")


def matching(pattern: str) -> Document:
    """Return an entry for each name that matches a pattern or belongs to a family."""
    names = [
        name for name in fragments() if fnmatchcase(name, pattern) or name == pattern or family_of(name) == pattern
    ]
    names = names or list(meant_by(pattern))
    if not names:
        raise unknown("layout", pattern, [*FAMILIES, *fragments()])
    rows = []
    for each in map(fragment, names):
        shape = f"{each.shape[0]} x {each.shape[1]}"
        rows.append((each.name, shape, each.threads, each.values, each.since, each.evidence.what, each.source))
    return Document((Table(NAMES, tuple(rows), key="layouts"),), f"layouts: {pattern}", hints=(f"{len(rows)} layouts",))


def everything() -> Document:
    """Return all layouts, grouped by their evidence: fragments first, then layouts of memory."""
    rows = (*_fragments(), *_others())
    count = len(fragments())
    hints = (f"{count} fragments; refsim layout list PATTERN lists their names",)
    return Document((Table(GATHERED, rows, key="layouts"),), "layouts and what they rest on", hints=hints)


def _fragments() -> "Iterator[tuple[Cell, ...]]":
    """Yield an entry for each group of fragments that share their formula and evidence."""
    groups: dict[tuple[str, Evidence], list[tuple[str, str, str]]] = {}
    for name in fragments():
        stem, operand, number = _parts(name)
        groups.setdefault((stem, evidence_of(name)), []).append((operand, number, name))
    for (stem, evidence), members in groups.items():
        operands = list(dict.fromkeys(operand for operand, _, _ in members if operand))
        braced = operands[0] if len(operands) == 1 else f"{{{','.join(operands)}}}"
        first = fragment(members[0][2])
        yield _row(
            family_of(first.name),
            stem.replace("OPERAND", braced),
            _numbers(stem, members),
            len(members),
            evidence,
            first.source,
        )


def _parts(name: str) -> tuple[str, str, str]:
    """Return the name with letters for varying parts, operand and number: wgmma.m64nNk16.f16.OPERAND, d, 128."""
    number = ""
    for pattern, letter in _VARYING:
        if match := pattern.search(name):
            kept = match[1] if match.groups() else ""
            number = match[0].removeprefix(kept)
            name = name[: match.start()] + kept + letter + name[match.end() :]
            break
    name = _SELECTOR.sub("", name)
    operand = _OPERAND.search(name)
    return (_OPERAND.sub("OPERAND", name, 1), operand[0], number) if operand else (name, "", number)


def _numbers(stem: str, members: Iterable[tuple[str, str, str]]) -> str | None:
    """Return the numbers of a group, as "N 8..256 by 8" where they are regular; None where the names have no number."""
    numbers = sorted({int(number) for _, number, _ in members if number})
    if not numbers:
        return None
    letter = "N" if re.search(r"nN|\.n?N", stem) else "R"
    steps = {after - before for before, after in pairwise(numbers)}
    if len(numbers) > 3 and len(steps) == 1:
        return f"{letter} {numbers[0]}..{numbers[-1]} by {steps.pop()}"
    if len(numbers) > 8:
        return f"{letter} {numbers[0]}..{numbers[-1]}, {len(numbers)} of them"
    return f"{letter} {', '.join(map(str, numbers))}"


def _others() -> "Iterator[tuple[Cell, ...]]":
    from refsim.layouts.descriptors import DESCRIPTORS
    from refsim.layouts.scales import SCALE_LAYOUTS
    from refsim.layouts.swizzles import SWIZZLES

    for swizzle in SWIZZLES:
        yield _row("swizzle", swizzle.name, None, 1, swizzle.evidence, swizzle.source)
    for layout in SCALE_LAYOUTS:
        yield _row("scales", layout.name, None, 1, layout.evidence, layout.source)
    for descriptor in DESCRIPTORS:
        yield _row("descriptor", descriptor.kind, None, 1, descriptor.evidence, descriptor.source)


def _row(
    kind: str, name: str, varying: str | None, count: int, evidence: Evidence, source: Source
) -> "tuple[Cell, ...]":
    return (kind, name, varying, count, evidence.level.word, evidence.what, source)
