"""Registers and spills of a compiled Triton kernel: ptxas runs when the program reads them."""

from types import ModuleType
from typing import Any

from refsim.ptx.machine.assemblers import Assembled, assembled
from refsim.standins.session import current

_WORD = 4


def take_resources(module: ModuleType) -> None:
    """Let kernels of triton.compiler.compiler, just imported, report ptxas's registers and spills."""
    kind: Any = module.CompiledKernel
    kind.n_regs = property(lambda self: _resources(self, "n_regs").registers, _given)
    kind.n_spills = property(lambda self: _resources(self, "n_spills").stack_bytes // _WORD, _given)


def _resources(kernel: Any, asked: str) -> Assembled:
    found = assembled(kernel.asm["ptx"], kernel.metadata.name, current().target)
    if found is None:
        raise current().unsupported(f"triton.CompiledKernel.{asked}", "no ptxas is installed that reads its PTX")
    return found


def _given(kernel: Any, value: int) -> None:
    """Ignore the value from the driver, which knows neither registers nor spills."""
