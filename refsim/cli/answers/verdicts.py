"""Verdicts as an answer: a table, the findings with their source lines, the devices; and a page to send."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from refsim.cli.answers.held_to import witnesses
from refsim.cli.answers.judged import Judged
from refsim.cli.answers.verdict_pages import heading, page
from refsim.cli.delivery import Answer
from refsim.render import Column, Document, Excerpt, Notice, Part, Table, Wording

if TYPE_CHECKING:
    from refsim.testing.verdicts import Verdict

COLUMNS = (
    Column("status", strong=True),
    Column("kernel"),
    Column("cases", align="right"),
    Column("elements", align="right"),
    Column("differing", label="differing", align="right"),
    Column("seconds", label="time", align="right", unit="s", drop=2),
    Column("promise", drop=3),
    Column("finding", text=False),
    Column("file", text=False),
    Column("line", text=False),
    Column("replay", text=False),
    Column("checks", text=False),
)
DEVICE_KEYS = (
    "device",
    "arithmetic",
    "without",
    "driver",
    "compiler",
    "ptx_origin",
    "ptx_target",
    "ptx_flags",
    "ptx_sha256",
    "assembler",
    "cubin_flags",
    "cubin_sha256",
)
_SEVERITY = (70, 2, 3, 1, 4, 5)


def exit_code(all_judged: Sequence[Judged]) -> int:
    """Return the exit code of the gravest verdict: of a wrong declaration or file before a failing kernel."""
    codes = {each.verdict.exit_code for each in all_judged} - {0}
    return next((code for code in _SEVERITY if code in codes), 0)


def answer(all_judged: Sequence[Judged]) -> Answer:
    """Return the document and the exit code of the verdicts."""
    parts: list[Part] = [Table(COLUMNS, tuple(map(_row, all_judged)), key="verdicts")]
    for each in all_judged:
        if each.was_run and each.is_told:
            facts = each.verdict.to_json() | {"source": [_excerpt_facts(excerpt) for excerpt in each.excerpts]}
            parts.append(Wording(tuple(each.lines()), facts, key=each.verdict.kernel, is_beside=True))
    ran = [each.verdict for each in all_judged if each.was_run and each.verdict.error is None]
    parts += [*witnesses(ran), *devices(ran)]
    notices = tuple(map(notice, _found(all_judged)))
    document = Document(tuple(parts), heading(all_judged), page=page(all_judged), notices=notices)
    return Answer(document, exit_code(all_judged))


def notice(each: Judged) -> Notice:
    """Return the review comment of a verdict that does not pass, at the CUDA line of its finding where it has one."""
    place = each.place
    return Notice(
        f"{each.verdict.kernel}: {each.verdict.status}",
        "\n".join(each.verdict.lines()[1:]) or each.verdict.status,
        Path(place[0]) if place else None,
        place[1] if place else None,
    )


def _found(all_judged: Sequence[Judged]) -> list[Judged]:
    return [each for each in all_judged if each.was_run and not each.verdict]


def _row(each: Judged) -> tuple[str | int | None, ...]:
    """Return the cells of a verdict."""
    verdict, place = each.verdict, each.place
    return (
        verdict.status,
        verdict.kernel,
        verdict.cases,
        verdict.elements,
        verdict.differing,
        f"{verdict.seconds:.1f}",
        verdict.promise,
        each.headline or None,
        place[0] if place else None,
        place[1] if place else None,
        verdict.replay or None,
        ", ".join(verdict.checks) or "none",
    )


def _excerpt_facts(excerpt: Excerpt) -> dict[str, object]:
    return {
        "name": excerpt.name,
        "line": excerpt.line,
        "file": None if excerpt.file is None else str(excerpt.file),
        "file_line": excerpt.file_line,
        "lines": {str(number): text for number, text in excerpt.rows},
    }


def devices(verdicts: "Sequence[Verdict]") -> list[Wording]:
    """Return the facts about the devices. Facts that differ between builds are listed by file or kernel."""
    builds: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for each in verdicts:
        builds.setdefault(tuple(each.device.items()), []).append(each.kernel)
    built = Counter(dict(facts).get("kernel_file", "") for facts in builds)
    files = {}
    for facts, kernels in builds.items():
        file = dict(facts).get("kernel_file", "")
        files[file if built[file] == 1 else f"{file}: {', '.join(kernels)}"] = dict(facts)
    if not files:
        return []
    first, *others = files.values()
    shared = {key: value for key, value in first.items() if all(facts.get(key) == value for facts in others)}
    of_files = {
        name: {key: value for key, value in facts.items() if key not in shared} for name, facts in files.items()
    }
    whole = Wording(_hash_lines(shared), shared, key="device", is_beside=True)
    return [
        whole,
        *(
            Wording((name, *_hash_lines(facts)), facts, key=name, is_beside=True)
            for name, facts in of_files.items()
            if facts
        ),
    ]


def _hash_lines(facts: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{key:15}  {facts[key]}" for key in DEVICE_KEYS if key in facts)
