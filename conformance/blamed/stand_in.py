"""Stand-ins for what is not here: a ptxas that edits what it is given, and a GPU whose machine code is PTX behind a mark.

The ptxas is a program of its own, so that finding it, asking its version and its refusals are those of a real one; the GPU is
the simulator under one schedule.
"""

import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from refsim.blame.builds import ELF
from refsim.blame.statements import Candidate
from refsim.device.assembling import Cubin
from refsim.device.sim import SimDevice, SimLauncher
from refsim.ptx.machine.assemblers import Assembler

_PROGRAM = """#!{python}
import os, pathlib, sys
if "--version" in sys.argv:
    print("Cuda compilation tools, release {major}.{minor}, V{release}")
    raise SystemExit
level = int(next(word for word in sys.argv if word.startswith("--opt-level=")).partition("=")[2])
text = pathlib.Path("kernel.ptx").read_text()
if {refuses!r} and {refuses!r} in text:
    sys.exit("ptxas kernel.ptx, line 1; error   : stand-in refuses")
for old, new in {edits!r}:
    text = text.replace(old, new) if level in {levels!r} else text
if {real!r}:
    pathlib.Path("kernel.ptx").write_text(text)
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
print("ptxas info    : Used 8 registers", file=sys.stderr)
pathlib.Path("kernel.cubin").write_bytes(b"\\x7fELF" + text.encode())
"""


def stand_in_ptxas(
    folder: Path,
    release: str,
    edits: tuple[tuple[str, str], ...] = (),
    levels: tuple[int, ...] = (0, 1, 2, 3),
    refuses: str = "",
    real: str = "",
) -> Path:
    """A ptxas of that release in a folder of its own, which makes `edits` at `levels`, and then asks a `real` one."""
    folder.mkdir(parents=True)
    program = folder / "ptxas"
    major, minor, _ = release.split(".")
    filled = {"python": sys.executable, "major": major, "minor": minor, "release": release}
    program.write_text(_PROGRAM.format(**filled, edits=edits, levels=levels, refuses=refuses, real=real))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


IN_PROCESS = Assembler("in process", "13.0.88", (9, 0), "stand-in")


@dataclass(frozen=True)
class InProcess:
    """What such a ptxas makes, without the process."""

    label: str
    level: int | None = 3
    edits: tuple[tuple[str, str], ...] = ()
    is_edited: bool = False
    takes_any_text: bool = True
    assembler: Assembler = IN_PROCESS

    def cubin(self, candidate: Candidate, target: str) -> Cubin:
        text = candidate.edited if self.is_edited else candidate.text
        for old, new in self.edits:
            text = text.replace(old, new)
        return Cubin(ELF + text.encode(), sha256(text.encode()).hexdigest(), "", target, (), self.label)


class StandInSilicon:
    """Runs the PTX behind the mark; from the second load on `later` edits it, as chance would."""

    is_simulated = False
    name = "cuda:0"

    def __init__(self, target: str = "sm_90a", later: tuple[str, str] | None = None) -> None:
        self.target, self.later, self.loads = target, later, 0

    def describe(self) -> dict[str, str]:
        return {"device": "a stand-in: the simulator on the PTX in the cubin", "target": self.target}

    @contextmanager
    def loaded_cubin(self, cubin: bytes, text: str, source: str) -> Iterator[SimLauncher]:
        assert cubin.startswith(ELF)
        inside = cubin.removeprefix(ELF).decode()
        self.loads += 1
        if self.later is not None and self.loads % 2 == 0:
            inside = inside.replace(*self.later)
        with SimDevice(self.target, schedules=1).loaded(inside, source) as launcher:
            yield launcher
