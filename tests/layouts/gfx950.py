"""A launch of gfx950 assembly: workgroups of waves of 64 lanes, from s_load to global_store, on a machine that has no such chip.

A wave runs until it meets a barrier; then the next one does. What memory returns, and what goes to LDS, arrives when s_waitcnt
says so, in order: a register that is read before, LDS that nobody wrote and bytes of no buffer are errors. MFMA multiplies by the
placeholder of `refsim.numerics`; which lane holds what is a `Maps`, those of `refsim.layouts` or wrong ones.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.layouts.gfx950_opcodes import execute
from tests.layouts.gfx950_waves import (
    BASE,
    KERNARG,
    LANES,
    PAGE,
    POISON,
    KernelFault,
    Machine,
    Maps,
    Memory,
    Wave,
    parsed,
)


def run(wave: Wave) -> bool:
    """Until a barrier, True, or the end, False."""
    program = wave.machine.program
    while True:
        made = program.instructions[wave.at]
        wave.at += 1
        match made.opcode:
            case "s_barrier":
                return True
            case "s_endpgm":
                for counter in wave.queues:
                    wave.wait(counter, 0)
                return False
            case "s_branch":
                wave.at = program.labels[made.operands[0]]
            case "s_cbranch_scc1":
                wave.at = program.labels[made.operands[0]] if wave.scc else wave.at
            case _:
                execute(wave, made)


def launch(
    assembly: str,
    entry: str,
    grid: tuple[int, int],
    arguments: Sequence[NDArray[Any] | int],
    *,
    waves: int = 4,
    maps: Maps = Maps(),  # noqa: B008
    backwards: bool = False,
) -> None:
    """Runs every program of a grid; arrays are copied in and back, numbers have 32 bits. `backwards`: the last wave first."""
    program = parsed(assembly, entry)
    memory, places = _memory(arguments)
    for index in range(grid[0] * grid[1]):
        machine = Machine(program, memory, maps)
        group = [_wave(machine, number, (index % grid[0], index // grid[0])) for number in range(waves)]
        running = list(reversed(group)) if backwards else group
        while running:
            going = [run(wave) for wave in running]
            if any(going) and not all(going):
                raise KernelFault("some waves end where others wait")
            running = running if going[0] else []
    for array, place in places:
        array[...] = memory.bytes[place : place + array.nbytes].view(array.dtype).reshape(array.shape)


def _memory(arguments: Sequence[NDArray[Any] | int]) -> tuple[Memory, list[tuple[NDArray[Any], int]]]:
    """Buffers, and the argument segment: pointers of 8 bytes, numbers of 4, two pointers of Triton's own."""
    arrays = [each for each in arguments if isinstance(each, np.ndarray)]
    size = KERNARG + PAGE + sum(-(-each.nbytes // PAGE) * PAGE + PAGE for each in arrays)
    memory = Memory(np.zeros(size, np.uint8), np.zeros(size, np.bool_), BASE)
    at, segment, places = KERNARG + PAGE, b"", []
    for each in (*arguments, *[np.zeros(0, np.uint8)] * 2):
        if not isinstance(each, np.ndarray):
            segment += np.int32(each).tobytes()
            continue
        segment += bytes(-len(segment) % 8) + np.uint64(BASE + at if each.size else 0).tobytes()
        if each.size:
            memory.store(np.array([BASE + at]), np.ascontiguousarray(each).reshape(-1).view(np.uint8)[None], new=True)
            places.append((each, at))
            at += -(-each.nbytes // PAGE) * PAGE + PAGE
    memory.store(np.array([BASE + KERNARG]), np.frombuffer(segment, np.uint8)[None], new=True)
    return memory, places


def _wave(machine: Machine, number: int, workgroup: tuple[int, int]) -> Wave:
    wave = Wave(
        machine,
        np.full(128, POISON, np.uint32),
        {bank: np.full((256, LANES), POISON, np.uint32) for bank in "va"},
        queues={"vmcnt": [], "lgkmcnt": []},
    )
    wave.banks["v"][0] = np.arange(LANES) + LANES * number
    wave.scalars[:2] = np.uint32([BASE + KERNARG, 0])
    wave.scalars[machine.program.ids : machine.program.ids + 2] = workgroup
    return wave
