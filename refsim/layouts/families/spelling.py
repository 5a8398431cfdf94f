"""Other spellings of fragments: an opcode of PTX, or some parts of names."""

import re
from collections.abc import Collection, Iterable

from refsim.errors import RefsimError
from refsim.matrix_opcodes import MatrixOpcode, matrix_opcode

MOST_LISTED = 12
_WITHOUT_K = re.compile(r"(m\d+n\d+)k\d+")
_OPERAND = re.compile(r"\.(sfa|sfb|meta|[abcd])(?=\.|$)")
_MOVES = ("ldmatrix", "stmatrix", "tcgen05")


def of_opcode(text: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the names of the fragments of an opcode of PTX, or one name if an operand follows the opcode.

    of_opcode("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32.a", ...) is ("mma.m16n8k16.bf16.a",). A shape that no
    instruction has gives names that are not in `known`. ldmatrix, stmatrix, tcgen05.ld and st have one fragment.
    """
    family, *words = text.split(".")
    if family in _MOVES and "aligned" in words:
        fitting = [name for name in known if set(name.split(".")[1:]) <= set(words) and name.split(".")[0] == family]
        return tuple(sorted(fitting, key=len)[-1:])
    opcode = matrix_opcode(text)
    if opcode is None:
        return ()
    operands = ("a", "b", "c", "d", *(("sfa", "sfb") if opcode.vector else ()), *(("meta",) if opcode.sparse else ()))
    asked = (opcode.operand,) if opcode.operand else operands
    made = [_named(opcode, each, known) for each in asked if each in opcode.types or each in ("sfa", "sfb", "meta")]
    return tuple(made if opcode.operand else [name for name in made if name in known] or made[:1])


def _named(opcode: MatrixOpcode, operand: str, known: Collection[str]) -> str:
    """Return the name of one operand; an accumulator and the major order of m8n8k4 follow if there is a choice."""
    stem = f"{opcode.family}.{opcode.shape}"
    if opcode.sparse and opcode.family == "mma":
        stem = f"mma.sp.{opcode.shape}"
    elif opcode.sparse and operand != "meta":  # the stored A lies as a dense A with half the K
        stem = stem.replace(f"k{opcode.k}", f"k{opcode.k // 2}")
    if operand == "meta":
        return f"{stem if opcode.family == 'mma' else f'wgmma.sp.m64k{opcode.k}'}.{opcode.types['a']}.meta"
    if operand.startswith("sf"):
        return f"{stem}.{opcode.kind}.{opcode.vector}.{operand}"
    own = opcode.types[operand]
    multiplied = opcode.types.get("a", own)
    if operand in ("c", "d") and opcode.family != "wmma":
        name = f"{stem}.{multiplied}.{operand}"
        return f"{name}.{own}" if f"{name}.{own}" in known else name
    name = f"{stem}.{own}.{operand}"
    if len(opcode.majors) == 2 and operand in "ab":
        refined = f"{name}.{opcode.majors['ab'.index(operand)]}"
        return refined if refined in known else name
    return name


def of_words(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the names that have all parts of a text in its order: m16n8k16.bf16 is part of the names of four operands.

    Names that end with the text come first: m64n128k32.e4m3.d does not mean the name that ends in .d.f16. If no name
    has the parts, a shape may leave out its k: wgmma.m64n128.d means every type of that shape.
    """
    words = text.split(".")
    names = tuple(name for name in known if "sp" in words or ".sp." not in name)
    for shown in (names, tuple(_WITHOUT_K.sub(r"\1", name) for name in names)):
        named = dict(zip(names, shown, strict=True))
        found = tuple(name for name in names if f".{named[name]}".endswith(f".{text}"))
        if found := found or tuple(name for name in names if _in_order(words, named[name].split("."))):
            return found
    return ()


def _in_order(words: list[str], among: list[str]) -> bool:
    rest = iter(among)
    return all(word in rest for word in words)


def which(text: str, names: tuple[str, ...]) -> RefsimError:
    """Return the error for a text that several fragments match: their names, operands in braces."""
    groups: dict[str, list[str]] = {}
    for name in names:
        found = _OPERAND.search(name)
        stem = name if found is None else f"{name[: found.start()]}.OPERAND{name[found.end() :]}"
        groups.setdefault(stem, []).append(found[1] if found else "")
    braced = {stem: each[0] if len(each) == 1 else f"{{{','.join(each)}}}" for stem, each in groups.items()}
    spelled = [stem.replace("OPERAND", operands) for stem, operands in braced.items()]
    more = f", and {len(spelled) - MOST_LISTED} more" if len(spelled) > MOST_LISTED else ""
    what = f"{text!r} names {len(names)} fragments"
    rule = "a name is family.shape.type.operand"
    return RefsimError("ambiguous-name", what, rule=rule, help=f"give one of {', '.join(spelled[:MOST_LISTED])}{more}")
