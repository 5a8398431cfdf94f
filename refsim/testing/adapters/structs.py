"""Structs that a kernel takes by value: their bytes from a layout and values, among them pointers to buffers."""

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from refsim.errors import RefsimError, check_named, counted, unknown
from refsim.kernels import Buffer, Struct
from refsim.ptx.text.parser import parse
from refsim.ptx.text.syntax import Address, Function, Immediate, Operand, Register, Statement, Symbol, Vector

_LOAD = re.compile(r"ld\.(?:[\w:]+\.)*?(?:v([248])\.)?([bufs])(8|16|32|64|128)")
RULE = "every field of a struct has a value: a number, a Buffer for a pointer, a list for an array, a dict for a struct"


def struct(layout: Any, fields: Mapping[str, Any] | None = None, **more: Any) -> Struct:
    """Return the bytes of a struct with a value for every field.

    struct(np.dtype([("n", "i4")]), n=5).raw is b"\\x05\\x00\\x00\\x00".

    `layout` is a structured NumPy dtype, a ctypes.Structure class, or the result of `parameter_dtype`. A Buffer in a
    64-bit field becomes its address; padding is zero. Raises RefsimError bad-argument for a field that is missing,
    unknown, out of range, or changed by its type (1.5 in an integer field). Source: the layout of the C compiler, as
    NumPy and ctypes compute it.
    """
    is_class = isinstance(layout, type) and issubclass(layout, ctypes.Structure | ctypes.Union)
    try:
        kind = np.dtype(layout)
    except (TypeError, ValueError) as error:
        what = f"{layout!r:.60} is no layout"
        raise RefsimError("bad-argument", what, rule="a NumPy dtype or a ctypes class") from error
    if kind.names is None:
        raise RefsimError("bad-argument", f"{kind} has no fields", rule="a structured dtype, or a class with _fields_")
    if kind.hasobject:
        raise RefsimError("bad-argument", f"{kind} holds Python objects", rule="a struct holds the bytes of its fields")
    made = np.zeros((), kind)
    _fill(made, {**(fields or {}), **more}, "struct")
    align = ctypes.alignment(layout) if is_class else (kind.metadata or {}).get("align", kind.alignment)
    return Struct(made.tobytes(), int(align))


def parameter_dtype(ptx: str, entry: str, number: int) -> np.dtype[Any]:
    """Return the layout of parameter `number` of an entry, from the loads of the PTX: fields at_0, at_8, ...

    Bytes that the kernel does not load have no field, and are zero in a struct. A tensor map is a field of 128 bytes.
    Raises RefsimError for an unknown entry or number, and bad-argument for a parameter that is indexed at run time or
    whose address the kernel passes on. Source: PTX ISA, ld.param, cvta.param and the directive .param.
    """
    functions = parse(ptx).functions
    if entry not in functions:
        raise unknown("entry", entry, sorted(functions))
    parameters = functions[entry].parameters
    if not 0 <= number < len(parameters):
        raise RefsimError("bad-argument", f"{entry} has {counted(len(parameters), 'parameter')}, asked: {number}")
    found = parameters[number]
    fields: dict[int, str] = {}
    for statement, offset in _accesses(functions[entry], found.name):
        load = _LOAD.fullmatch(statement.opcode)
        if offset is None or not (load or "tensor" in statement.opcode):
            what = f"no constant is the address in {found.name} that {statement.opcode} takes"
            help = "give `struct` a NumPy dtype or a ctypes class"
            raise RefsimError("bad-argument", what, f"line {statement.line}", "fields have constant addresses", help)
        many, letter, bits = load.groups() if load else (None, "V", "1024")
        width = int(bits) // 8
        if width == 16:
            many, width = 2 * int(many or 1), 8
        for at in range(offset, offset + width * int(many or 1), width):
            kind = f"{letter if letter == 'V' or (letter == 'f' and width > 1) else 'u'}{width}"
            if at not in fields or width > int(fields[at][1:]):
                fields[at] = kind
    kept = {at: kind for at, kind in sorted(fields.items()) if at + int(kind[1:]) <= found.size}
    names, kinds = [f"at_{at}" for at in kept], [*kept.values()]
    spec = {"names": names, "formats": kinds, "offsets": [*kept], "itemsize": found.size}
    layout: np.dtype[Any] = np.dtype(spec, metadata={"align": found.align})  # type: ignore[call-overload]
    return layout


def _accesses(function: Function, name: str) -> Iterator[tuple[Statement, int | None]]:
    """Yield each statement that takes an address within a parameter, and the byte there; None for one that varies."""
    known: dict[Operand, int | None] = {}

    def places(*operands: Operand | None) -> list[int | None]:
        """Return the bytes of the operands that are addresses within the parameter."""
        found: list[int | None] = []
        for each in operands:
            if isinstance(each, Symbol) and each.name == name:
                found.append(each.offset)
            elif isinstance(each, Register) and each in known:
                found.append(known[each])
            elif isinstance(each, Vector):
                found += places(*each.elements)
        return found

    def result(statement: Statement) -> list[int | None]:
        """Return the byte that a statement's result addresses, or nothing for another number."""
        found, sources = places(*statement.operands[1:]), statement.operands[1:]
        added = [each.value for each in sources if isinstance(each, Immediate)]
        is_constant = statement.opcode.startswith(("mov.", "cvta.", "add.")) and len(added) + 1 == len(sources)
        return [found[0] + sum(added) if is_constant and found[0] is not None else None] if found else []

    before = None
    while before != known:
        before = dict(known)
        for statement in function.statements:
            first = statement.operands[0] if statement.operands else None
            for target in first.elements if isinstance(first, Vector) else (first,):
                if isinstance(target, Register) and ((value := result(statement)) or target in known):
                    known[target] = value[0] if value and known.get(target, value[0]) == value[0] else None
    for statement in function.statements:
        for each in statement.operands:
            if isinstance(each, Address):
                yield from ((statement, None if at is None else at + each.offset) for at in places(each.base))
        if statement.opcode.startswith(("st", "atom", "red", "call")) and places(*statement.operands[1:]):
            yield statement, None


def _fill(made: np.ndarray[Any, Any], fields: Mapping[str, Any], where: str) -> None:
    """Write every field of a struct; raise RefsimError for a missing, an unknown or an unfit one."""
    names = made.dtype.names or ()
    for name in fields:
        check_named("field", name, names)
    missing = [name for name in names if name not in fields]
    if missing:
        raise RefsimError("bad-argument", f"field {missing[0]!r} has no value", where, RULE)
    for name in names:
        value, place = fields[name], f"{where}.{name}"
        if isinstance(value, Mapping) and made[name].dtype.names is not None:
            _fill(made[name], value, place)
            continue
        try:
            number = _number(value, made[name].dtype, place)
            made[name] = number
            if made[name].dtype.kind in "iub" and not _is_kept(made[name], number):
                raise ValueError("NumPy converted it to another number")
        except (OverflowError, TypeError, ValueError) as error:
            raise RefsimError("bad-argument", f"{value!r:.60} does not fit {made[name].dtype}", place, RULE) from error


def _is_kept(made: np.ndarray[Any, Any], number: Any) -> bool:
    """Return whether an integer field has the number, or the bits of NumPy integers of its width."""
    kind = number.dtype if isinstance(number, np.integer | np.ndarray) else np.dtype("f8")
    has_bits = kind.kind in "iu" and kind.itemsize == made.dtype.itemsize
    return has_bits or bool((made.astype(object) == np.asarray(number, object)).all())


def _number(value: Any, kind: np.dtype[Any], where: str) -> Any:
    """Return a value as NumPy stores it: the address of a Buffer, and each element of a list."""
    if isinstance(value, Buffer):
        if kind.itemsize != 8 or kind.kind not in "ui":
            what = f"{value.name} stands in a field of type {kind}"
            raise RefsimError("bad-argument", what, where, "a pointer has 64 bits")
        return value.address
    if isinstance(value, bytes | Struct):
        if kind.kind != "V" or len(bytes(value)) != kind.itemsize:
            raise RefsimError("bad-argument", f"{len(bytes(value))} bytes in a field of type {kind}", where, RULE)
        return bytes(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_number(each, kind, where) for each in value]
    return value
