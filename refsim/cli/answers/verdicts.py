"""Verdicts as an answer: a table, the findings with their source lines, the devices; a page to send; JUnit XML."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Literal

from refsim.cli.delivery import Answer
from refsim.compare import Element, Mismatch
from refsim.errors import RefsimError, counted
from refsim.kernels import Kernel
from refsim.ptx.text.words import words_in
from refsim.render import (
    Cell,
    Column,
    Command,
    Document,
    Entry,
    Excerpt,
    Notice,
    Part,
    Record,
    Section,
    Table,
    Wording,
    facts_of,
)
from refsim.render import junit as xml
from refsim.silicon.witness import SiliconWitness
from refsim.testing.excerpts import excerpts, place_of
from refsim.testing.verdicts import HELD_TO, Verdict


@dataclass(frozen=True)
class Judged:
    """A verdict with its kernel, None for a file that declares none, and the source lines that the finding names."""

    kernel: Kernel | None
    verdict: Verdict
    excerpts: tuple[Excerpt, ...] = field(default=())

    @property
    def was_run(self) -> bool:
        """Return whether the kernel was run."""
        return self.verdict.status != "not-run"

    @property
    def is_told(self) -> bool:
        """Return whether the verdict has more to say than its line in the table: a finding, a waiver or a note."""
        return not self.verdict or bool(self.verdict.notes or self.verdict.waived)

    @property
    def place(self) -> tuple[str, int | None] | None:
        """Return (file, line) of the error, else of the first excerpt that comes from a file."""
        if self.verdict.error is not None and self.verdict.error.place is not None:
            return self.verdict.error.place
        return next(((str(each.file), each.file_line) for each in self.excerpts if each.file is not None), None)

    @property
    def code(self) -> str:
        """Return the label of the kernel's code."""
        return self.kernel.code.label if self.kernel is not None else ""

    @property
    def headline(self) -> str:
        """Return the first line of the finding."""
        return next(iter(self.verdict.finding.splitlines()), "")

    def lines(self) -> list[str]:
        """Return the lines of the verdict without its independent checks, with the excerpts after the finding."""
        lines = [line for line in self.verdict.lines() if not line.startswith(HELD_TO)]
        behind = 1 + len(self.verdict.finding.splitlines())
        return [*lines[:behind], *(line for excerpt in self.excerpts for line in excerpt.lines()), *lines[behind:]]


def judged(kernel: Kernel | None, verdict: Verdict) -> Judged:
    """Return a verdict with its kernel. The source is read now, before anybody edits it."""

    if kernel is None:
        return Judged(kernel, verdict)
    if verdict.error is not None:
        verdict.error.place = place_of(verdict.error, kernel)
    return Judged(kernel, verdict, excerpts(verdict, kernel) if verdict.finding else ())


_TONES: Mapping[str, Literal["good", "bad"]] = {"pass": "good", "fail": "bad", "error": "bad"}
_SUMMARY = (
    Column("kernel", of="verdict.kernel"),
    Column("status", of="verdict.status"),
    Column("cases", align="right", of="verdict.cases"),
    Column("elements", align="right", of="verdict.elements"),
    Column("differing", align="right", of="verdict.differing"),
    Column("seconds", label="time", align="right", unit="s", of=lambda each: f"{each.verdict.seconds:.1f}"),
)
_ELEMENTS = (Column("which", label=" "), Column("place"), Column("got"), Column("want"), Column("off"))


def heading(all_judged: "Sequence[Judged]") -> str:
    """Return the title of the page: the kernel that fails, or how many kernels fail."""
    wrong = [each for each in all_judged if not each.verdict]
    if not wrong:
        names = [each.verdict.kernel for each in all_judged]
        return f"{names[0]} passes" if len(names) == 1 else f"{len(names)} kernels pass"
    if len(all_judged) == 1:
        return f"{wrong[0].verdict.kernel}: {wrong[0].verdict.status}"
    return f"{len(wrong)} of {len(all_judged)} kernels do not pass"


def page(all_judged: "Sequence[Judged]") -> tuple[Section, ...]:
    """Return a section for all kernels, one for each kernel that fails or has notes, then their devices."""
    told = [each for each in all_judged if each.was_run and each.is_told]
    wrong = sum(not each.verdict for each in all_judged)
    summary = Section(
        "Kernels",
        (Table.of(_SUMMARY, all_judged, key="verdicts"),),
        f"{wrong} of {len(all_judged)} do not pass" if wrong else "all pass",
        min((_TONES.get(each.verdict.status, "open") for each in all_judged), key=("bad", "open", "good").index),
    )
    ran = [each.verdict for each in all_judged if each.was_run and each.verdict.error is None]
    beside = Section("Held to", tuple(witnesses(ran)))
    return (summary, *map(_section, told), *([beside] if beside.parts else []), *_devices(all_judged))


def _section(each: "Judged") -> Section:
    """Return the section of a kernel: its finding, source lines, smallest case, command and facts."""
    verdict, mismatch = each.verdict, each.verdict.mismatch
    parts: list[Part | Excerpt] = []
    if mismatch is not None and _first_and_worst(mismatch):
        parts += [_said(*_without_elements(each)), _elements(mismatch)]
        parts += [_said(*(line for element in _first_and_worst(mismatch) for line in element.owner.splitlines()))]
        parts += [_said(*(f"likely cause: {line}" for line in mismatch.suspects))]
    else:
        parts.append(_said(*verdict.finding.splitlines()))
    parts += each.excerpts
    case = [f"smallest case known: {verdict.problem_text}"] if verdict.problem_text else []
    parts += [_said(*case), _said(*([Command(f"again: refsim replay {verdict.replay}")] if verdict.replay else []))]
    parts.append(_said(*(f"waived: {name}: {what}" for name, what in verdict.waived.items() if what)))
    parts.append(_said(*(f"note: {line}" for line in verdict.notes)))
    parts = [part for part in parts if not isinstance(part, Wording) or part.lines]
    parts.append(_facts(each))
    return Section(verdict.kernel, tuple(parts), verdict.status, _TONES.get(verdict.status, "open"))


def _said(*lines: str) -> Wording:
    return Wording(lines, {})


def _facts(each: "Judged") -> Record:
    verdict = each.verdict
    worst = verdict.worst or verdict.mismatch
    off = f", {worst.worst_text}" + (f" in {worst.name}" if worst.name else "") if verdict.differing and worst else ""
    return Record(
        (
            Entry("promise", verdict.promise),
            Entry("tried", f"{counted(verdict.cases, 'case')}, {counted(verdict.elements, 'element')}"),
            Entry("beyond", f"{counted(verdict.differing, 'element')}{off}", label="beyond the promise"),
            Entry("profile", verdict.profile + ("" if verdict.seed is None else f", seed {verdict.seed}")),
            Entry("ran on", " ".join(verdict.device[key] for key in ("name", "target") if key in verdict.device)),
            Entry("source", each.code or None),
        )
    )


def _without_elements(each: "Judged") -> list[str]:
    """Return the finding without the lines that the table of elements and the candidate causes show."""
    shown = {line for element in _first_and_worst(each.verdict.mismatch) for line in element.owner.splitlines()}
    lines = each.verdict.finding.splitlines()
    return [line for line in lines if line not in shown and not line.startswith(("first ", "worst ", "likely cause: "))]


def _first_and_worst(mismatch: Mismatch | None) -> list[Element]:
    """Return the first and the worst differing element: one if they coincide, none without a difference."""
    if mismatch is None or mismatch.first is None or mismatch.worst is None:
        return []
    return [mismatch.first] if mismatch.worst.index == mismatch.first.index else [mismatch.first, mismatch.worst]


def _elements(mismatch: Mismatch) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for which, element in zip(("first", "worst"), _first_and_worst(mismatch), strict=False):
        place = f"{mismatch.name}[{', '.join(map(str, element.index))}]"
        got, want, off = mismatch.spelled(element)
        rows.append((which, place, got, want, off))
    return Table(_ELEMENTS, tuple(rows), key="elements")


def _devices(all_judged: "Sequence[Judged]") -> list[Section]:
    """Return a section for each set of hash, flags and versions, with the names of its kernels."""
    sets: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for each in all_judged:
        if each.was_run and each.verdict.device:
            sets.setdefault(tuple(each.verdict.device.items()), []).append(each.verdict.kernel)
    return [
        Section(f"What ran: {', '.join(names)}", (Record(tuple(Entry(key, value) for key, value in facts)),))
        for facts, names in sets.items()
    ]


COLUMNS = (
    Column("status", strong=True, of="verdict.status"),
    *(_SUMMARY[0], *_SUMMARY[2:5]),
    replace(_SUMMARY[5], drop=2),
    Column("promise", drop=3, of="verdict.promise"),
    Column("finding", text=False, of=lambda each: each.headline or None),
    Column("file", text=False, of=lambda each: each.place and each.place[0]),
    Column("line", text=False, of=lambda each: each.place and each.place[1]),
    Column("replay", text=False, of=lambda each: each.verdict.replay or None),
    Column("checks", text=False, of=lambda each: ", ".join(each.verdict.checks) or "none"),
)
DEVICE_KEYS = words_in("""
    device arithmetic without driver compiler ptx_origin ptx_target ptx_flags ptx_sha256 assembler cubin_flags
    cubin_sha256 host
""")
_SEVERITY = (70, 2, 3, 1, 4, 5)


def exit_code(all_judged: Sequence[Judged]) -> int:
    """Return the exit code of the gravest verdict: of a wrong declaration or file before a failing kernel."""
    codes = {each.verdict.exit_code for each in all_judged} - {0}
    return next((code for code in _SEVERITY if code in codes), 0)


def answer(all_judged: Sequence[Judged]) -> Answer:
    """Return the document and the exit code of the verdicts."""
    parts: list[Part] = [Table.of(COLUMNS, all_judged, key="verdicts")]
    for each in all_judged:
        if each.was_run and each.is_told:
            facts = each.verdict.to_json() | {"source": [_excerpt_facts(excerpt) for excerpt in each.excerpts]}
            parts.append(Wording(tuple(each.lines()), facts, key=each.verdict.kernel, is_beside=True))
    ran = [each.verdict for each in all_judged if each.was_run and each.verdict.error is None]
    parts += [*witnesses(ran), *devices(ran)]
    notices = tuple(notice(each) for each in all_judged if each.was_run and not each.verdict)
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


def _excerpt_facts(excerpt: Excerpt) -> dict[str, object]:
    file, lines = excerpt.file, {str(number): text for number, text in excerpt.rows}
    return {**facts_of(excerpt, "name line"), "file": None if file is None else str(file)} | {
        "file_line": excerpt.file_line,
        "lines": lines,
    }


def devices(verdicts: Sequence[Verdict]) -> list[Wording]:
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
    parts = [Wording(_hash_lines(shared), shared, key="device", is_beside=True)]
    for name, built_from in files.items():
        if own := {key: value for key, value in built_from.items() if key not in shared}:
            parts.append(Wording((name, *_hash_lines(own)), own, key=name, is_beside=True))
    return parts


def _hash_lines(facts: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{key:15}  {facts[key]}" for key in DEVICE_KEYS if key in facts)


def witnesses(verdicts: Sequence[Verdict]) -> list[Wording]:
    """Return one part for all kernels: each kind of instruction once, then how many outputs were computed again."""
    if not verdicts:
        return []
    silicon = reduce(SiliconWitness.joined, (each.silicon for each in verdicts))
    facts = {"silicon": silicon.to_json(), "recomputed": {each.kernel: each.recomputed.to_json() for each in verdicts}}
    none = [each.kernel for each in verdicts if not each.checks]
    last = [f"independent checks: none of {', '.join(none)}"] if none else []
    return [Wording((*silicon.lines(), definitions(verdicts), *last), facts, key="witnesses", is_beside=True)]


def definitions(verdicts: Sequence[Verdict]) -> str:
    """Return a line: how many outputs slow definitions computed again, and the kernels that declare none."""
    declared = [each for each in verdicts if each.recomputed.is_declared]
    without = [each.kernel for each in verdicts if not each.recomputed.is_declared]
    outputs, differing = (sum(getattr(each.recomputed, name) for each in declared) for name in ("outputs", "differing"))
    judges = ", ".join(dict.fromkeys(judge for each in declared for judge in each.recomputed.judges)) or "none"
    again = f"{counted(outputs, 'output', digits=',')} computed again ({judges}), {differing:,} differ"
    parts = [again] if declared else []
    parts += [f"no second definition was asked for {', '.join(without)}"] if without else []
    return f"slow definitions: {'; '.join(parts)}"


_ELEMENT = {"fail": "failure", "not-run": "skipped"}  # other statuses are errors: CI must not show them as green


def junit(all_judged: "Sequence[Judged]", ended: tuple[str, RefsimError] | None = None) -> str:
    """Return one test suite. `ended` is a command and the error that ended it before a kernel ran.

    The status `fail` is a failure. `inexact`, `assumed`, `unsupported` and `timeout` are errors of that type, `error`
    one of the type of its code. A kernel that `--fail-fast` left out is skipped. The text is the output of `verify`.
    """
    cases = [_case(each) for each in all_judged]
    if ended is not None:
        name, error = ended
        inner = xml.properties({"was": " ".join(error.was)}) + _problem("error", error.code, error.what, str(error))
        cases.append(xml.element("testcase", inner, classname="refsim", name=name, **_place(error.place)))
    seconds = sum(each.verdict.seconds for each in all_judged)
    return xml.document(xml.suite("refsim verify", cases, time=f"{seconds:.3f}"))


def _case(each: "Judged") -> str:
    """Return the test case of a verdict, with its facts as properties."""
    verdict = each.verdict
    facts: Mapping[str, object] = {
        **facts_of(verdict, "status profile cases elements differing promise replay"),
        "seed": "" if verdict.seed is None else verdict.seed,
        "silicon": "; ".join(verdict.silicon.lines()),
        "definition": verdict.recomputed.text,
        "waived": "; ".join(f"{name}: {what}" for name, what in verdict.waived.items() if what),
        "was": " ".join(verdict.error.was) if verdict.error else "",
        "checks": ", ".join(verdict.checks) or "none",
        **verdict.device,
    }
    inner = xml.properties(facts)
    if not verdict:
        kind_of, error = _ELEMENT.get(verdict.status, "error"), verdict.error
        kind, said = (error.code, error.what) if error else (verdict.status, each.headline or verdict.status)
        inner += _problem(kind_of, kind, said, "\n".join(each.lines()))
    own = {"classname": each.code or "refsim", "name": verdict.kernel, **_place(each.place)}
    return xml.element("testcase", inner, **own, time=f"{verdict.seconds:.3f}")


def _place(place: tuple[str, int | None] | None) -> dict[str, object]:
    return {"file": place[0], "line": place[1]} if place else {}


def _problem(name: str, kind: str, message: str, words: str) -> str:
    return xml.element(name, xml.text(words), type=kind, message=message)
