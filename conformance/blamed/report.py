"""The report of the script: JSON with device, tools and hashes, and the same as a page of tables."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from refsim.blame import Blame, BuiltBy, Shrunk, Silicon
from refsim.blame.examining import BuildRow
from refsim.errors import RefsimError

COLUMNS = (
    "kernel",
    "verdict",
    "build",
    "-O",
    "words",
    "problems",
    "registers",
    "cubin bytes",
    "seconds",
    "first difference",
)


@dataclass
class Report:
    """What was found so far; each addition writes FILE and FILE.md."""

    path: Path
    silicon: Silicon | None
    builds: tuple[BuiltBy, ...]
    older: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    kernels: list[dict[str, Any]] = field(default_factory=list)
    planted_cases: list[dict[str, Any]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return 1 if self.failed or not (self.kernels or self.planted_cases) else 0

    def kernel(self, found: Blame, case: Shrunk | None) -> None:
        """One kernel of the tree, of which nobody is to be blamed."""
        refused = any(row.state == "refused" for row in found.rows)
        if found.verdict not in ("none", "not-run") or refused or found.never_launched:
            self.failed.append(found.subject.name)
        self.kernels.append({**blamed_record(found), **shrunk_record(case)})
        self.write()

    def left_out(self, name: str, error: RefsimError) -> None:
        """A kernel that was not asked about: there is no PTX of it for this target, or the simulator lacks something."""
        self.kernels.append(
            {"kernel": name, "verdict": "left-out", "because": [f"[{error.code}] {error.what}"], "builds": []}
        )
        self.write()

    def planted(self, record: dict[str, Any]) -> None:
        """A planted miscompile, which has to be blamed on its own ptxas at its own level, and shrunk."""
        if not record["is_right"]:
            self.failed.append(f"planted {record['planted']}")
        self.planted_cases.append(record)
        self.write()

    def write(self) -> None:
        facts = {} if self.silicon is None else self.silicon.describe()
        record = {
            "when": datetime.now(UTC).strftime("%Y-%m-%d"),
            "device": {key: facts[key] for key in ("device", "driver", "backend", "target") if key in facts},
            "ptxas": sorted({str(build.assembler) for build in self.builds}),
            "not_asked": list(self.older),
            "kernels": sorted(self.kernels, key=lambda each: self.order.index(each["kernel"])),
            "planted": self.planted_cases,
        }
        self.path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        self.path.with_suffix(".md").write_text(page(record), "utf-8")


def blamed_record(found: Blame) -> dict[str, Any]:
    """A verdict with its builds."""
    known = ("ptx_sha256", "source_sha256", "compiler", "ptx_origin")
    return {
        "kernel": found.subject.name,
        "target": found.subject.target,
        "verdict": found.verdict,
        "because": list(found.because),
        "entries_launched": sorted(found.launched),
        "problems": [found.subject.spelled(problem) for problem in found.subject.problems],
        **{key: found.facts[key] for key in known if key in found.facts},
        "builds": [_build(row, len(found.subject.problems)) for row in found.rows],
    }


def _build(row: BuildRow, problems: int) -> dict[str, Any]:
    cubin = row.cubin
    made = (
        {}
        if cubin is None
        else {
            "cubin_sha256": cubin.sha256,
            "cubin_bytes": len(cubin.image),
            "registers": cubin.registers,
            "flags": cubin.flags,
        }
    )
    agreeing = {"agreeing": problems - len(row.differing)} if row.has_run else {}
    seconds = round(row.seconds, 2)
    return {
        "build": row.build.label,
        "level": row.build.level,
        "state": row.state,
        **agreeing,
        "seconds": seconds,
        "first": row.first,
        **made,
    }


def shrunk_record(case: Shrunk | None) -> dict[str, Any]:
    """The smallest case, where there is one."""
    if case is None:
        return {}
    found = {
        "problem": case.problem,
        "instructions": case.candidate.instructions,
        "first": case.first,
        "ptx": case.text,
    }
    return {"smallest": {**found, "is_smallest": case.is_smallest, "tried": case.tried}}


def page(record: dict[str, Any]) -> str:
    """The tables: a row for each build of each kernel, then the planted miscompiles."""
    device = record["device"] or {"device": "none: assembled, and not run"}
    lines = [
        f"# {', '.join(record['ptxas'])} beside the simulator",
        "",
        f"{record['when']}; {', '.join(device.values())}",
        "",
    ]
    lines += [each for line in record["not_asked"] for each in (f"{line[0].upper()}{line[1:]}.", "")]
    lines += [_row(*COLUMNS), "|" + "---|" * len(COLUMNS)]
    for kernel in record["kernels"]:
        if not kernel["builds"]:
            lines.append(_row(kernel["kernel"], kernel["verdict"], *[""] * 7, "; ".join(kernel["because"])))
        for build in kernel["builds"]:
            agreeing = f"{build['agreeing']} of {len(kernel['problems'])}" if "agreeing" in build else ""
            made = [build.get(key, "") for key in ("registers", "cubin_bytes")]
            words = (build["build"], build["level"], build["state"], agreeing, *made, build["seconds"], build["first"])
            lines.append(_row(kernel["kernel"], kernel["verdict"], *words))
    if record["planted"]:
        head = ("planted", "blamed", "statements left", "problem left", "tried")
        lines += ["", _row(*head), "|" + "---|" * len(head)]
    for case in record["planted"]:
        left = case.get("smallest", {})
        lines.append(
            _row(
                case["planted"],
                "yes" if case["is_right"] else case["verdict"],
                *(left.get(key, "") for key in ("instructions", "problem", "tried")),
            )
        )
    return "\n".join(lines) + "\n"


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell).replace('|', ';') for cell in cells)} |"
