"""Remove or weaken each statement that orders a kernel's memory, one at a time, and report which changes are caught.

A kernel should have only barriers, waits, commits and fences that it needs, and only the acquire, release and scope
that its loads, stores and atomics need. For each change, the test cases that reach the statement run again on the
simulated GPU, under every policy. A change is caught by a fault, or by bits that differ from the oracle.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from refsim import ptx
from refsim.device.compile import compiled
from refsim.errors import RefsimError
from refsim.kernels import Kernel
from refsim.ptx.text.syntax import Statement
from refsim.testing import verdicts
from refsim.testing.changed_device import ChangedDevice
from refsim.testing.runs import examine

BARRIER_OPCODES = re.compile(
    r"(bar|barrier|mbarrier)\.|cp\.async\.(commit_group|wait_group|wait_all|mbarrier\.arrive|bulk\.(commit|wait)_group)\b"
)
MEMORY = re.compile(r"(ld|st|atom|red|membar)\.|fence\.(?!proxy|mbarrier_init)")
WEAKER_ORDERS = {"acquire": ("relaxed",), "release": ("relaxed",), "acq_rel": ("acquire", "release")}
WIDE_SCOPES = ("cluster", "gpu", "gl", "sys")
STRENGTH = frozenset({"relaxed", "volatile", *WEAKER_ORDERS, "cta", *WIDE_SCOPES})
TRAP = "trap"
NEVER_RUN = "no test case runs it"
NO_DIFFERENCE = "every test case gives the same bits without it, under every policy and with no finding"


@dataclass(frozen=True)
class Removal:
    """One statement removed, or weakened to the opcode `instead`; `caught` says whether a run noticed the change.

    `finding` is the fault or difference, or the reason why there is none. `line` is the line in the PTX, `location` the
    line in the CUDA source.
    """

    entry: str
    opcode: str
    line: int
    location: str
    caught: bool
    finding: str
    problem: Any = None
    instead: str = ""

    def __str__(self) -> str:
        verdict = "caught" if self.caught else "missed"
        first, *rest = self.finding.splitlines()
        where = next((line.strip() for line in rest if line.strip().startswith("at:")), "")
        weaker = f" as {self.instead}" if self.instead else ""
        return (
            f"{verdict}  {self.entry}: {self.opcode} of {self.location}{weaker}, PTX line {self.line}: {first} {where}"
        ).rstrip()


def weaker(opcode: str) -> tuple[str, ...]:
    """Return the opcodes that order less than `opcode` and may replace it; "" stands for removal.

    Barriers, waits and fences are removed. The scope of a fence or strong access shrinks to .cta unless the access
    names shared memory. .acquire and .release become .relaxed; .acq_rel becomes either of them; a strong load or store
    becomes a weak one. `ld.acquire.gpu.global.u32` has two: `ld.relaxed.gpu.global.u32` and
    `ld.acquire.cta.global.u32`.
    """
    if BARRIER_OPCODES.match(opcode):
        return ("",)
    mnemonic, *words = opcode.split(".")
    if not MEMORY.match(opcode) or "mmio" in words:
        return ()
    is_fence, is_shared = mnemonic in ("membar", "fence"), any(word.startswith("shared") for word in words)
    found = [""] if is_fence else []
    for place, word in enumerate(words):
        instead = () if is_fence else WEAKER_ORDERS.get(word, ())
        if word in WIDE_SCOPES and not is_shared:
            instead = ("cta",)
        found += [".".join((mnemonic, *words[:place], less, *words[place + 1 :])) for less in instead]
    if mnemonic in ("ld", "st") and ("relaxed" in words or "volatile" in words):
        found.append(".".join((mnemonic, *(word for word in words if word not in STRENGTH))))
    if mnemonic in ("atom", "red") and not is_shared and STRENGTH.isdisjoint(words):
        found.append(".".join((mnemonic, "cta", *words)))
    return tuple(found)


def sweep(
    kernel: Kernel,
    problems: Iterable[Any],
    *,
    target: str = "sm_90a",
    alternatives: Callable[[str], tuple[str, ...]] = weaker,
    on_removal: Callable[[Removal], None] | None = None,
) -> tuple[Removal, ...]:
    """Replace each statement of every launched entry by each of its `alternatives`, one at a time; return the results.

    The test cases run in the given order until one notices the change; small ones that fill several tiles should come
    first. `finding` distinguishes statements that no test case runs from statements whose change makes no difference.
    Raises RefsimError for a kernel without a file, and for a kernel that fails without any change.
    """
    if kernel.call is not None:
        raise RefsimError("no-kernel-file", f"{kernel.name} has no file whose PTX could be changed")
    program = ptx.load(compiled(kernel.code, target).text, target)
    launched = [(problem, _entries(kernel, problem, program)) for problem in problems]
    found = []
    for entry in dict.fromkeys(entry for _, entries in launched for entry in sorted(entries)):
        mine = [problem for problem, entries in launched if entry in entries]
        for statement in program.module.functions[entry].statements:
            for instead in alternatives(statement.opcode):
                found.append(_weakened(kernel, program, entry, statement, instead, mine))
                if on_removal is not None:
                    on_removal(found[-1])
    return tuple(found)


def only(text: str, entry: str) -> str:
    """Return PTX in which all other entries are blank lines, so that parsing is faster; line numbers do not change."""
    kept, at = [], 0
    for head in re.finditer(r"^[^\S\n]*(?:\.visible\s+|\.weak\s+)?\.entry\s+([\w$]+)", text, re.MULTILINE):
        end = _closing_brace(text, head.end())
        body = text[head.start() : end]
        kept += [text[at : head.start()], body if head[1] == entry else "\n" * body.count("\n")]
        at = end
    return "".join((*kept, text[at:]))


def _closing_brace(text: str, start: int) -> int:
    """Return the position after the brace that closes the first one from `start` on, ignoring comments and strings."""
    depth = 0
    for token in re.finditer(r"[{}]|//[^\n]*|/\*.*?\*/|\"[^\"\n]*\"", text[start:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if token[0] == "}" and depth == 0:
            return start + token.end()
    return len(text)


def without(program: ptx.Program, entry: str, statement: Statement, instead: str = "") -> ptx.Program:
    """Return the program without one statement of an entry, or with the opcode `instead` ("trap": no operands).

    The text is not parsed again: lines, registers and producers do not change.
    """
    function = program.module.functions[entry]
    at = next(at for at, each in enumerate(function.statements) if each is statement)
    other = Statement(instead, (), None, statement.line, statement.location)
    if instead and instead != TRAP:
        other = replace(statement, opcode=instead)
    statements = [*function.statements[:at], *([other] if instead else []), *function.statements[at + 1 :]]
    labels = {name: place - (place > at and not instead) for name, place in function.labels.items()}
    functions = {**program.module.functions, entry: replace(function, statements=statements, labels=labels)}
    return ptx.Program(replace(program.module, functions=functions), program.target, program.sha256, program.text)


def _entries(kernel: Kernel, problem: Any, program: ptx.Program) -> set[str]:
    """Return the entries that a test case launches; raise RefsimError kernel-fails if the unchanged kernel fails."""
    device = ChangedDevice(program, schedules=2)
    finding = examine(kernel, problem, device).finding
    if finding is not None:
        raise RefsimError("kernel-fails", f"{kernel.name} fails before anything is removed: {finding.text}")
    return device.entries


def _weakened(
    kernel: Kernel, program: ptx.Program, entry: str, statement: Statement, instead: str, problems: list[Any]
) -> Removal:
    """Return the result of one change: caught by the first test case that notices, never run, or without effect."""
    where = entry, statement.opcode, statement.line, str(statement.location or "no source line")
    device = ChangedDevice(without(program, entry, statement, instead))
    for problem in problems:
        finding = examine(kernel, problem, device).finding
        if finding is not None and finding.status in (verdicts.FAIL, verdicts.TIMEOUT):
            return Removal(*where, True, finding.text, problem, instead)
    trapping = ChangedDevice(without(program, entry, statement, TRAP), schedules=1)
    runs = any(examine(kernel, problem, trapping).finding is not None for problem in problems)
    return Removal(*where, False, NO_DIFFERENCE if runs else NEVER_RUN, None, instead)
