"""What is tried of a newcomer's kernels: each as it is, and each of the forty mistakes of `bugs.toml` in a copy of it."""

import re
import shutil
import tempfile
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from refsim import device
from refsim.kernels import Kernel
from refsim.testing import run_campaign
from refsim.testing.kernel_files import find_kernels
from refsim.testing.verdicts import FAIL, PASS, Verdict

FOLDER = Path(__file__).parent
GENERATED = 25  # problems for a kernel whose corpus agrees
SECONDS = 240.0  # for the mistake behind a failure
SUSPECTED = {
    "contraction": (),
    "rounding-mode": (),
    "flushed-subnormals": (),
    "saturated-or-propagated-infinity": (
        "infinity saturated or propagated",
        "infinity saturated",
        "infinity propagated",
    ),
    "nan-dropped": ("NaN dropped",),
    "double-rounding": (),
    "reduction-order": (),
    "fn-fnuz": ("FN / FNUZ", "format: "),
    "scale-rule": (),
    "off-by-one-row": ("off by one: ", "row n holds row n +1", "row n holds row n -1", "row 0 holds row 1,"),
    "off-by-one-column": (
        "off by one: ",
        "column n holds column n +1",
        "column n holds column n -1",
        "column 0 holds column 1,",
    ),
    "transposed": (),
    "swizzle-not-undone": (),
    "tail": (),
    "wrong-axis-stride": ("stride: ",),
}
"""The causes that a suspect may stand for, each with what a report may say in other words; all other classes of `bugs.toml`
must stay without a name."""

KERNELS = (
    "rmsnorm_fp8",
    "silu_ue8m0",
    "softmax",
    "int8_dequant",
    "histogram",
    "reduction",
    "attention",
    "triton_matmul",
    "triton_softmax",
    "numba_reduction",
    "unpack_transpose",
    "group_quantise",
)
"""The declarations of this folder."""


@dataclass(frozen=True)
class Bug:
    """One edit of one file: `old` gives way to `new`; `expected` is what must be seen of it."""

    id: str
    kernel: str
    cause: str
    file: str
    old: str
    new: str
    expected: Literal["bits", "fault"]

    def applied(self, text: str) -> str:
        """The text with the mistake in it; ValueError unless what it replaces stands there once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.id}: {self.old!r} stands {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Outcome:
    """What refsim said: a status, the code of a fault or "bits", the suspects it named, cases and seconds."""

    kernel: str
    status: str
    code: str
    suspects: tuple[str, ...]
    cases: int
    seconds: float
    text: str


def read_bugs() -> tuple[Bug, ...]:
    records = tomllib.loads((FOLDER / "bugs.toml").read_text("utf-8"))["bug"]
    return tuple(Bug(cause=record.pop("class"), **record) for record in records)


def declared(name: str, folder: Path = FOLDER) -> tuple[Kernel, ...]:
    """The kernels of a declaration: several where one source is compiled for several targets."""
    return find_kernels([folder / f"{name}.py"])


def tried(kernel: Kernel, cases: int = GENERATED, seconds: float = SECONDS) -> Outcome:
    """The special problems of a kernel, and, where all agree, generated ones; a failure is not shrunk."""
    gpu = device.open("sim", target=target_of(kernel))
    special = run_campaign(kernel, gpu, cases=0, suspect_seconds=seconds)
    if special.status != PASS:
        return outcome(kernel.name, special)
    generated = outcome(
        kernel.name, run_campaign(replace(kernel, corpus=()), gpu, cases=cases, suspect_seconds=seconds)
    )
    return replace(generated, cases=special.cases + generated.cases, seconds=special.seconds + generated.seconds)


def tried_as_it_is(name: str) -> tuple[Outcome, ...]:
    return tuple(tried(kernel) for kernel in declared(name))


def target_of(kernel: Kernel) -> str:
    """The target that a PTX text names; CUDA is compiled for the simulator's own."""
    directive = re.search(r"^\s*\.target\s+(\w+)", kernel.ptx or "", re.MULTILINE)
    return directive[1] if directive else "sm_90a"


def outcome(name: str, verdict: Verdict) -> Outcome:
    suspects = tuple(re.findall(r"^likely cause: (.*)$", verdict.finding, re.MULTILINE))
    fault = re.match(r"\[([\w-]+)\]", verdict.finding)
    code = "" if verdict.status == PASS else fault[1] if fault else "bits" if verdict.mismatch else "?"
    return Outcome(name, verdict.status, code, suspects, verdict.cases, verdict.seconds, str(verdict))


def tried_with(bug: Bug, seconds: float = SECONDS) -> tuple[Outcome, ...]:
    """What is said of each kernel of the declaration once the mistake stands in a copy of its source."""
    with tempfile.TemporaryDirectory(prefix="refsim-newcomer-") as name:
        folder = Path(name)
        shutil.copytree(FOLDER / "kernels", folder / "kernels")
        shutil.copy(FOLDER / f"{bug.kernel}.py", folder)
        source = folder / "kernels" / bug.file
        source.write_text(bug.applied(source.read_text("utf-8")), "utf-8")
        return tuple(tried(kernel, seconds=seconds) for kernel in declared(bug.kernel, folder))


def is_caught(bug: Bug, outcomes: tuple[Outcome, ...]) -> bool:
    """Whether every kernel with the mistake fails, and as it was expected to: by its bits, or by a fault."""
    return all(each.status == FAIL and (each.code == "bits") == (bug.expected == "bits") for each in outcomes)


def naming(bug: Bug, outcomes: tuple[Outcome, ...]) -> Literal["right", "wrong", "none"]:
    """Whether the suspects that were named are the cause: "wrong" if any other was, or any where none stands for it."""
    named = [causes_of(suspect) for each in outcomes for suspect in each.suspects]
    if not named:
        return "none"
    return "right" if all(bug.cause in causes for causes in named) else "wrong"


def causes_of(suspect: str) -> tuple[str, ...]:
    """The causes that the text of a suspect may mean: an "off by one" is one of a row or of a column."""
    said = suspect.replace(" ", "-"), suspect
    named = [
        cause for cause, others in SUSPECTED.items() if cause in said[0] or any(text in said[1] for text in others)
    ]
    return tuple(named)
