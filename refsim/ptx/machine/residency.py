"""Which CTAs of a launch run at once: as many as a chip holds if CTAs may wait for one another, else few.

A grid runs in waves, and each wave ends before the next starts. A kernel whose CTAs wait for one another is right only
if they are all resident. Its wave is the number that the target holds at once. An elementwise kernel cannot see the
difference, so its waves have the size that runs fastest: registers of 16,384 lanes stay in the cache.
"""

from collections.abc import Iterator

from refsim.ptx.lowering.blocks import Code
from refsim.ptx.machine.launch_rules import LaunchShape
from refsim.ptx.machine.limits import ctas_per_sm, limits_of
from refsim.ptx.memory.space import SHARED_BASE
from refsim.ptx.text.syntax import Function, Label

WAVE_LANES = 1 << 14
WAVE_BYTES = 32 << 20  # shared and local memory of the CTAs that run at once
RESIDENT_BYTES = 2 << 30  # shared and local memory and registers of CTAs that may wait for one another
_POLLING = frozenset({"volatile", "acquire", "relaxed", "mmio", "cv", "cg"})


def co_resident(target: str, shape: LaunchShape, shared_bytes: int, registers: int | None) -> int:
    """Return how many CTAs of a launch the target's chip holds at once, in whole clusters. One CTA an SM is assumed if
    registers are not known. 1,024 threads of 32 registers on sm_90: 2 an SM, 264 in all."""
    limits = limits_of(target)
    per_sm = 1 if registers is None else ctas_per_sm(limits, shape.threads, shared_bytes, registers)
    return max(limits.sms * max(per_sm, 1) // shape.cluster_ctas, 1) * shape.cluster_ctas


def few_ctas(shape: LaunchShape, shared_bytes: int, local_bytes: int) -> int:
    """Return how many CTAs a wave has if no CTA waits for another: whole clusters whose registers stay in the cache."""
    owned = SHARED_BASE + shared_bytes + shape.threads * local_bytes
    return _whole_clusters(shape, min(WAVE_LANES // shape.threads, WAVE_BYTES // owned))


def affordable_ctas(shape: LaunchShape, shared_bytes: int, local_bytes: int, code: Code) -> int:
    """Return how many CTAs have state that fits in RESIDENT_BYTES, in whole clusters."""
    of_a_thread = local_bytes + sum(max(bits // 8, 1) for bits in code.slot_bits)
    return _whole_clusters(shape, RESIDENT_BYTES // (SHARED_BASE + shared_bytes + shape.threads * of_a_thread))


def _whole_clusters(shape: LaunchShape, ctas: int) -> int:
    return max(ctas // shape.cluster_ctas, 1) * shape.cluster_ctas


def may_wait_for_others(function: Function) -> bool:
    """Return whether a loop of the entry polls memory that another CTA can write. A poll is an atomic that returns a
    value, or a load that is not weak. A `red`, or an atomic outside every loop, does not wait."""
    end = -1
    for first, last in sorted(_loops(function)):
        if any(_is_poll(function.statements[pc].opcode) for pc in range(max(first, end + 1), last + 1)):
            return True
        end = max(end, last)
    return False


def _loops(function: Function) -> Iterator[tuple[int, int]]:
    """Yield the statements between each branch back and its target; every loop is within the union of these ranges."""
    for pc, statement in enumerate(function.statements):
        for operand in statement.operands:
            if isinstance(operand, Label):
                for label in function.branch_tables.get(operand.name, (operand.name,)):
                    if function.labels.get(label, pc + 1) <= pc:
                        yield function.labels[label], pc


def _is_poll(opcode: str) -> bool:
    mnemonic, *words = opcode.split(".")
    named = frozenset(words)
    if any(word.split("::")[0] in ("shared", "local", "param", "const") for word in words):
        return False
    return mnemonic == "atom" or (mnemonic == "ld" and not named.isdisjoint(_POLLING))
