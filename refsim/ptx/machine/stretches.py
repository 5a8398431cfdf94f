"""From an address or the name of a variable to the bytes that it means."""

import re

from refsim.errors import RefsimError, unknown
from refsim.ptx.machine.launch import place_variables
from refsim.ptx.machine.program import Program
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.memory.space import GLOBAL_BASE, WINDOW_SIZE, WINDOWS
from refsim.ptx.observers.accesses import Stretch
from refsim.ptx.text.syntax import Variable

RULE = (
    "ADDRESS (global, generic, or of shared memory), a variable, a parameter or argN for the array that it points to; "
    "+BYTES from there, :BYTES how many"
)
WORD = 4
_SPELLED = re.compile(
    r"(?P<base>[^+:]+?)(?:\+(?P<offset>0x[0-9a-fA-F]{1,16}|[0-9]{1,20}))?(?::(?P<count>[0-9]{1,20}))?"
)


def stretch_named(program: Program, entry: str, text: str, shared_bytes: int = 0) -> Stretch:
    """Return the bytes that a text names in one state space: `0x4000000280`, `0x480`, `tile`, `tile+64:16`, `arg1+256`.

    They are four bytes at an address or after an offset, else a whole variable. `tile` is also found under a mangled
    name (_ZZ3addE4tile). Raises RefsimError `bad-address`, or `unknown-symbol` with the nearest names. Source: PTX ISA,
    state spaces; the windows of generic addresses are this simulator's.
    """
    match = _SPELLED.fullmatch(text.strip())
    if match is None:
        raise RefsimError("bad-address", f"{text!r} names no bytes", rule=RULE)
    offset = int(match["offset"] or "0", 0)
    count = int(match["count"]) if match["count"] else None
    if count == 0:
        raise RefsimError("bad-address", f"{text!r} names no bytes", rule=RULE)
    if re.fullmatch(r"0x[0-9a-fA-F]{1,16}|[0-9]{1,20}", match["base"]):
        return _address(int(match["base"], 0) + offset, count or WORD)
    space, start, size, region = _named(program, entry, match["base"], shared_bytes)
    whole = size if not match["offset"] else WORD
    return Stretch(space, start + offset, start + offset + (count or whole), region)


def _address(address: int, count: int) -> Stretch:
    """Return the bytes at an address; addresses below 2^32 are shared memory, as findings print them."""
    if address >= GLOBAL_BASE:
        return Stretch("global", address - GLOBAL_BASE, address - GLOBAL_BASE + count)
    for space, start in WINDOWS.items():
        if start <= address < start + WINDOW_SIZE:
            return Stretch(space, address - start, address - start + count)
    if address >= WINDOW_SIZE:
        raise RefsimError("bad-address", f"{address:#x} lies in no state space", rule=RULE)
    return Stretch("shared", address, address + count)


def _named(program: Program, entry: str, name: str, shared_bytes: int) -> tuple[str, int, int, str]:
    """Return state space, first byte, size and region of a variable, or of the array that a parameter points to."""
    function = program.code(entry).function
    parameters = [variable.name for variable in function.parameters]
    names = [f"arg{position}" for position in range(len(parameters))]
    if name in (*parameters, *names):
        position = (parameters if name in parameters else names).index(name)
        return "global", 0, 1 << 62, f"argument {position}"
    placed = place_variables(program.module, function, program.key, program.target, GlobalMemory(), shared_bytes)
    variables = {each.name: each for each in (*program.module.variables.values(), *function.variables)}
    found = [each for each in variables if each in placed.symbols and _is_called(each, name)]
    if len(found) != 1:
        known = [*(each.partition("@")[0] for each in variables if each in placed.symbols), *parameters, *names]
        raise unknown("symbol", name, known)
    variable = variables[found[0]]
    if variable.space in ("global", "const"):
        return "global", 0, variable.size, f"{variable.name}@{program.key}"
    return variable.space, placed.symbols[variable.name], _size(variable, shared_bytes), ""


def _is_called(mangled: str, name: str) -> bool:
    """Return whether a name means a variable: _ZZ3addE4tile, _ZN2ns4tileE and tile@add@0 of a scope are `tile`."""
    own = mangled.partition("@")[0]
    return name in (mangled, own) or re.search(rf"(?<!\d){len(name)}{re.escape(name)}(E|_\d+)?$", own) is not None


def _size(variable: Variable, shared_bytes: int) -> int:
    """Return the size of a variable; an array without a size has the dynamic shared memory of the launch."""
    return variable.size or max(shared_bytes, 1)
