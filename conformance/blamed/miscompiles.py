"""A planted miscompile from end to end, in a process with a context of its own on the GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import refsim.device
from conformance.blamed.report import blamed_record, shrunk_record
from conformance.blamed.stand_in import StandInSilicon, stand_in_ptxas
from conformance.blamed.subjects import PLANTED, planted
from refsim.blame import BuiltBy, builds_of, examined, shrunk
from refsim.errors import RefsimError


@dataclass(frozen=True)
class Miscompile:
    """What a process is told: the defect by its name, the builds beside it, and how long it may shrink."""

    name: str
    builds: Sequence[BuiltBy]
    stand_in: bool
    device: str
    repeats: int
    seconds: float
    folder: Path


def planted_record(asked: Miscompile) -> dict[str, Any]:
    """One more ptxas makes the defect, at its highest level alone: it has to be blamed at that level, and shrunk."""
    edit, real = PLANTED[asked.name], asked.builds[0].assembler
    try:
        silicon: Any = StandInSilicon() if asked.stand_in else refsim.device.open(asked.device)
        behind = "" if asked.stand_in else real.program
        program = stand_in_ptxas(asked.folder / asked.name, real.release, (edit,), (3,), real=behind)
        wrong = builds_of([program], only_named=True)
        found = examined(planted(silicon.target), [*asked.builds, *wrong], silicon, repeats=asked.repeats)
        case = shrunk(found, silicon, seconds=asked.seconds)
    except RefsimError as error:
        return {"planted": asked.name, "edit": list(edit), "is_right": False, "verdict": str(error), "builds": []}
    blamed = {
        (row.build.assembler.program, row.build.level) for row in found.culprits if isinstance(row.build, BuiltBy)
    }
    is_right = found.verdict == "ptxas" and blamed == {(str(program), 3)} and case is not None and edit[0] in case.text
    about = {"planted": asked.name, "edit": list(edit), "is_right": is_right}
    return {**about, **blamed_record(found), **shrunk_record(case)}
