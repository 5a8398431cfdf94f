"""Addresses of names that are no placed variables: functions, symbols in generic accesses, tables of addresses.

`mov.u64 r, s` gives the place of a shared variable within its window. `ld.u32 r, [s]` names no state space, and ptxas
makes it an access to that window. A variable therefore has two addresses; the generic one is kept under `generic(s)`.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from refsim.errors import RefsimError
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.memory.space import FUNCTION_BASE, WINDOWS
from refsim.ptx.text.syntax import Module, Variable

FUNCTION_STEP = 16


def function_addresses(module: Module) -> dict[str, int]:
    """Return a number for each function of a module, for `mov` and for tables of functions."""
    found = {name: FUNCTION_BASE + FUNCTION_STEP * place for place, name in enumerate(module.functions)}
    return found | {alias: found[name] for alias, name in module.aliases.items() if name in found}


def generic_addresses(symbols: Mapping[str, int], variables: Iterable[Variable]) -> dict[str, int]:
    """Return the addresses of variables for accesses that name no state space, as `generic(name)`."""
    return {
        f"generic({variable.name})": symbols[variable.name] + WINDOWS.get(variable.space, 0)
        for variable in variables
        if variable.name in symbols
    }


def write_references(variable: Variable, symbols: Mapping[str, int], device: GlobalMemory) -> None:
    """Write the addresses that a variable is initialized with; every name must have been placed."""
    for reference in variable.references:
        name = reference.symbol.name
        if name not in symbols:
            raise RefsimError(
                "unknown-symbol", f"{variable.name} begins with the address of {name!r}, which is nowhere"
            )
        address = (symbols[name] + reference.symbol.offset) % (1 << 64) >> reference.shift
        content = np.frombuffer(address.to_bytes(8, "little")[: reference.width], np.uint8)
        device.write(symbols[variable.name] + reference.offset, content)
