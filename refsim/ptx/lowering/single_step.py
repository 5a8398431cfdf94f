"""An entry cut so that its registers can be read after every statement."""

from dataclasses import replace

from refsim.ptx.lowering.blocks import BasicBlock, Code
from refsim.ptx.lowering.steps import Step


def single_stepped(code: Code) -> Code:
    """The same entry in blocks of one statement, with a place of its own for every register.

    A block writes back what later blocks read and registers share places; here each statement writes back all it wrote,
    and nothing is overwritten but by a statement of the kernel.
    """
    blocks = {pc: _block(pc, step) for pc, step in enumerate(code.steps)}
    places = list(range(len(code.register_bits)))
    return replace(code, blocks=blocks, slots=places, slot_bits=list(code.register_bits), functions={}, tracked={})


def _block(pc: int, step: Step) -> BasicBlock:
    ends = step.is_terminator
    return BasicBlock(pc, [] if ends else [step], step if ends else None, pc + 1, set(step.writes()))
