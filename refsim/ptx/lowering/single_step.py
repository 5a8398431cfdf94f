"""An entry cut into blocks of one statement, so that its registers can be read after every statement."""

from dataclasses import replace

from refsim.ptx.lowering.blocks import BasicBlock, Code
from refsim.ptx.lowering.steps import Step


def single_stepped(code: Code) -> Code:
    """Return the entry in blocks of one statement, with a place of its own for every register. A normal block writes
    back only what later blocks read, and registers share places. Here each statement writes back all of its results,
    and only statements of the kernel overwrite a place."""
    blocks = {pc: _block(pc, step) for pc, step in enumerate(code.steps)}
    places = list(range(len(code.register_bits)))
    return replace(code, blocks=blocks, slots=places, slot_bits=list(code.register_bits), functions={}, tracked={})


def _block(pc: int, step: Step) -> BasicBlock:
    ends = step.is_terminator
    return BasicBlock(pc, [] if ends else [step], step if ends else None, pc + 1, set(step.writes()))
