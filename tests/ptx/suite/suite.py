"""What a row of the suite is, and how its kernel is run.

The CUDA sources beside this file hold families of kernels: `name<0>` is right, `name<n>` is the same text less one edge,
and the comments `An` and `Bn` stand at the two accesses that this edge kept apart.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim import ptx
from refsim.device.compile import compile_ptx
from refsim.errors import RefsimError
from refsim.kernels import Kernel
from refsim.ptx.memory.global_memory import GlobalMemory

FOLDER = Path(__file__).parent
TARGET = "sm_80"
NEWER = {"uninitialised_hopper.cu": "sm_90a", "warpgroup.cu": "sm_90a"}
NEWER |= dict.fromkeys(("uninitialised_blackwell.cu", "tensor_core.cu"), "sm_100a")
WORDS = 256  # of input: 1, 4, 7, ...
WORK = 512  # words of scratch in global memory, zero unless a row says that nobody has written them
Words = NDArray[np.uint32]


@dataclass(frozen=True)
class Right:
    """A kernel without a fault: `expected` makes its output from the input words."""

    file: str
    name: str
    expected: Callable[[Words], Any]
    block: int | tuple[int, int] = 32
    grid: int = 1
    is_work_written: bool = True

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Wrong:
    """The right kernel `less_of` without one edge, `missing`; `less` is the number of that instance.

    codes: those that the finding may have. agents: "lanes" of one warp, "warps" of one block, or "blocks". says: how the
    finding calls the missing edge, where that does not follow from the agents. shows: what it says of the half that is missing,
    where every run shows that. warned: the finding is a warning, as chips
    deliver the value all the same.
    """

    less_of: str
    less: int
    space: str
    agents: str
    missing: str
    codes: tuple[str, ...] = ("race",)
    says: str = ""
    shows: tuple[str, ...] = ()
    warned: bool = False

    @property
    def name(self) -> str:
        return f"{self.less_of}<{self.less}>"

    def __str__(self) -> str:
        return self.name

    def edge(self, code: str) -> str:
        """How a finding of that code calls what is missing, or what it reached."""
        if code == "read-before-wait":
            return "still writes them"
        if code == "uninitialised":
            return self.says or "reached an output"
        return self.says or {"lanes": "__syncwarp", "warps": "barrier", "blocks": "release"}[self.agents]


@cache
def program(file: str) -> ptx.Program:
    """All kernels of a source, compiled and parsed once."""
    target = NEWER.get(file, TARGET)
    return ptx.load(compile_ptx(FOLDER / file, target).text, target)


def entry(kernel: Right, less: int = 0) -> str:
    """The mangled name of an instance."""
    stem = f"_Z{len(kernel.name)}{kernel.name}ILi{less}EE"
    (found,) = (name for name in program(kernel.file).entries if name.startswith(stem))
    return found


def extents(kernel: Right) -> tuple[int, ...]:
    return (kernel.block,) if isinstance(kernel.block, int) else kernel.block


def inputs() -> Words:
    """Words of which no two are equal, and none is zero."""
    return np.arange(1, 3 * WORDS, 3, dtype=np.uint32)


def wanted(kernel: Right) -> Words:
    """What the right kernel leaves in its output."""
    return np.atleast_1d(np.asarray(kernel.expected(inputs()))).astype(np.uint32)


def run(
    kernel: Right,
    policy: str,
    seed: int = 1,
    *,
    less: int = 0,
    checks: ptx.Checks,
    device_ptx: ptx.Program | None = None,
) -> tuple[Words, ptx.Trace]:
    """Launch an instance; its output, and what the launch saw. device_ptx: another text of the same source."""
    device = GlobalMemory()
    x, y, work = inputs(), np.zeros(len(wanted(kernel)), np.uint32), np.zeros(WORK, np.uint32)
    scratch = work if kernel.is_work_written else np.uint64(device.allocate(work.nbytes, "work"))
    trace = (device_ptx or program(kernel.file)).launch(
        entry(kernel, less),
        (kernel.grid,),
        extents(kernel),
        [x, y, scratch],
        memory=device,
        policy=policy,
        seed=seed,
        checks=checks,
    )
    return y, trace


@cache
def source_lines(kernel: Right, less: int) -> tuple[str, str]:
    """`warp.cu:9`, `warp.cu:11`: where the comments An and Bn stand in the text of the kernel."""
    lines = (FOLDER / kernel.file).read_text("utf-8").splitlines()
    (start,) = (n for n, line in enumerate(lines) if re.search(rf"__global__ void .*\b{kernel.name}\(", line))
    end = next(n for n in range(start, len(lines)) if lines[n].startswith("LESS_"))
    places = []
    for side in "AB":
        (place,) = (n for n in range(start, end) if re.search(rf"//.*\b{side}{less}\b", lines[n]))
        places.append(f"{kernel.file}:{place + 1}")
    return places[0], places[1]


@dataclass(frozen=True)
class Once:
    """The one problem of a kernel of the suite: its inputs are always the same."""


def declared(kernel: Right) -> Kernel:
    """A right kernel as an author would declare it, for the sweep."""

    def launch(launcher: Any, _: Once) -> dict[str, Words]:
        x = launcher.upload(inputs(), name="x")
        y = launcher.upload(np.zeros_like(wanted(kernel)), name="y", writable=True)
        if kernel.is_work_written:
            work = launcher.upload(np.zeros(WORK, np.uint32), name="work", writable=True)
        else:
            work = launcher.output(WORK, np.uint32, name="work")
        launcher.launch(entry(kernel), (kernel.grid,), extents(kernel), [x, y, work])
        return {"y": launcher.read(y)}

    return Kernel(
        kernel.name, lambda _: {"y": wanted(kernel)}, None, launch, {"y": ""}, recipe=Once, file=FOLDER / kernel.file
    )


ORDER = {"race", "read-before-wait", "ordered-by-convergence"}
SAME = "by the same instruction"  # two threads at once: what is missing is one writer
THREAD = re.compile(r"thread \((\d+), (\d+), \d+\) of block \((\d+), ")


def agents(kernel: Right, error: RefsimError) -> str:
    """How far the two threads that a finding names first and last stand apart; a product in flight reads for warps."""
    found = [tuple(map(int, each)) for each in THREAD.findall(f"{error.what} {error.where}")]
    if "which are read by wgmma" in error.what:
        return "warps"
    (one, one_block), (other, other_block) = (
        (x + extents(kernel)[0] * y, block) for x, y, block in (found[0], found[-1])
    )
    return "blocks" if one_block != other_block else "warps" if one // 32 != other // 32 else "lanes"


def findings(kernel: Right, wrong: Wrong, policy: str, seed: int, checks: ptx.Checks) -> list[RefsimError]:
    """All that a run of the wrong kernel says, warnings only of one that is to be warned of."""
    try:
        _, trace = run(kernel, policy, seed, less=wrong.less, checks=checks)
    except RefsimError as error:
        return [error]
    return list(trace.warnings if wrong.warned else trace.findings)


def is_what_was_wanted(kernel: Right, wrong: Wrong, error: RefsimError) -> bool:
    """Whether a finding is the one of that row: its code, both source lines, the missing edge, and of a race the agents."""
    text = f"{error.what} {error.where}"
    lines = source_lines(kernel, wrong.less)
    return (
        error.code in wrong.codes
        and all(re.search(rf"{re.escape(line)}\b", text) for line in lines)
        and (wrong.edge(error.code) in text or SAME in text)
        and all(half in text for half in wrong.shows)
        and (not set(wrong.codes) & ORDER or agents(kernel, error) == wrong.agents)
    )
