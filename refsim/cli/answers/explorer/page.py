"""The page of `refsim explore`: one HTML file with its style, its script and the tables of the model."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim import __version__
from refsim.cli.answers.anatomy import kind_of
from refsim.errors import RefsimError
from refsim.formats import ELEMENTS, ElementType, Format
from refsim.layouts.banks import BANK_BYTES, BANKS
from refsim.layouts.descriptors import DESCRIPTORS, Descriptor, Field, matrices
from refsim.layouts.descriptors.fields import Fields, Rule, Value
from refsim.layouts.families import Fragment, fragment, fragments
from refsim.layouts.scales import SCALE_LAYOUTS, ScaleLayout
from refsim.layouts.swizzles import SWIZZLES, Swizzle, swizzle
from refsim.layouts.tiles import K, atom_rows, check_major
from refsim.ptx.text.words import words_in
from refsim.render import facts_of
from refsim.render.svg import DARK, LIGHT, PALETTE_HUES, SHADES, fill

EVIDENCE = "evidence=evidence.what"
EXACT_BITS = 53  # JavaScript's integers are exact to here; longer codes are written as text


def element_rows() -> list[dict[str, Any]]:
    """Return every type that a matrix may hold: the formats of `refsim decode`, f64, and the integers.

    e4m3 has 4 exponent and 3 mantissa bits, quantum 2^-9, and the range [0x7f, 0x7f, "nan", "nan"] among its kinds.
    """
    rows = [_format_row(row) if isinstance(row, Format) else _integer_row(row) for row in ELEMENTS]
    return sorted(rows, key=lambda row: row["bits"] > EXACT_BITS)  # rarely used types come last


def _format_row(row: Format) -> dict[str, Any]:
    """Return the entry of a format."""
    fields = "exponent=exponent_bits mantissa=mantissa_bits padding=padding_bits bias quantum about=specials.value"
    one = round(1 / row.quantum) if row.twos_complement else row.bias << row.mantissa_bits + row.padding_bits
    flags = "binadesFromZero=binades_from_zero twosComplement=twos_complement"
    return {
        **facts_of(row, "name aliases bits=code_bits signed", fields, flags),
        "one": _number(one, row),
        "kinds": [[_number(first, row), _number(last, row), *said] for first, last, *said in kinds_of(row)],
        "source": str(row.source),
    }


def _integer_row(row: ElementType) -> dict[str, Any]:
    """Return the entry of an integer type: a two's complement number of quantum 1. s8 has 7 bits below its sign."""
    signed = bool(getattr(row, "signed", False))
    return {
        "name": row.name,
        "aliases": [],
        "bits": row.code_bits,
        "signed": signed,
        "exponent": 0,
        "mantissa": row.code_bits - signed,
        "padding": 0,
        "bias": 0,
        "binadesFromZero": False,
        "twosComplement": True,
        "quantum": 1,
        "kinds": [[0, row.code_limit - 1, "integer", ""]],
        "about": "two's complement" if signed else "unsigned",
        "source": str(row.source),
    }


def kinds_of(row: Format) -> list[list[Any]]:
    """Return runs of codes of one kind, without padding, ascending: [first, last, kind, "nan", "inf", "-inf" or ""].

    Kinds change only at a few magnitudes: at zero, at the first normal, at the largest, at infinity. The model is
    asked once for the first code after each of these places.
    """
    limit = 1 << row.bits
    whole, largest = 1 << row.mantissa_bits, row.max_code >> row.padding_bits
    places = (1, whole, largest, row.magnitude_limit - whole, row.magnitude_limit)
    turns = {turn for place in places for turn in (place - 1, place, place + 1)}
    signs = (0, row.sign_mask >> row.padding_bits)
    starts = {sign + turn for turn in turns for sign in signs} | {limit - turn for turn in turns}
    found: list[list[Any]] = []
    for first in sorted(start for start in starts if 0 <= start < limit):
        code = first << row.padding_bits
        value = row.value(code)
        said = [kind_of(code, row, value), "" if math.isfinite(value) else str(value)]
        if found and found[-1][2:] == said:
            continue
        if found:
            found[-1][1] = first - 1
        found.append([first, limit - 1, *said])
    return found


def _number(code: int, row: Format) -> int | str:
    """Return a code in a form that JavaScript reads exactly: an integer, or text for wide codes."""
    return str(code) if row.code_bits > EXACT_BITS else code


def memory_rows() -> dict[str, Any]:
    """Return the swizzles with the atoms of their tiles, and the banks.

    128B moves 3 bits from 3 places above bit 4.
    """
    return {"swizzles": [_memory_row(each) for each in SWIZZLES], "banks": BANKS, "bankBytes": BANK_BYTES}


def _memory_row(pattern: Swizzle) -> dict[str, Any]:
    known = facts_of(pattern, "name bits base shift span=span_bytes repeat=repeat_bytes chunk=chunk_bytes", EVIDENCE)
    return known | {"atomRows": atom_rows(pattern), "refusal": _refusal(pattern), "source": str(pattern.source)}


def _refusal(pattern: Swizzle) -> str:
    """Return why no tile has rows of this swizzle, "" where tiles do."""
    try:
        check_major(K, pattern)
    except RefsimError as problem:
        return problem.what
    return ""


SCRIPTS = tuple(
    f"{name}.js"
    for name in words_in("""
    model dump grid panel fragment format swizzle scales descriptor dump_view address page
""")
)


def tables() -> dict[str, Any]:
    """Return all data of the page: element types, fragments, swizzles, scale layouts, descriptors and colors."""
    return {
        "version": __version__,
        "palette": {mode: [fill(colour, mode) for colour in range(PALETTE_HUES * SHADES)] for mode in (LIGHT, DARK)},
        "elements": element_rows(),
        "fragments": fragment_rows(),
        "memory": memory_rows(),
        "scales": scale_rows(),
        "descriptors": descriptor_rows(),
        "remarks": remark_words(),
    }


@cache
def page() -> str:
    """Return the complete page. It fetches nothing, and its policy forbids it; it is built once."""
    facts = json.dumps(tables(), separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    filled = {
        "/* style */": _asset("page.css"),
        "/* script */": "\n".join(_asset(name) for name in SCRIPTS),
        "/* tables */": facts,
    }
    text = _asset("page.html")
    for mark, content in filled.items():
        text = text.replace(mark, content)
    return text


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


COLUMNS = (
    "name", "rows", "cols", "threads", "values", "threadRow", "threadCol", "valueRow", "valueCol", "perRegister",
    "slotBits", "elementBits", "elementShift", "units", "element", "since", "evidence", "source",
)  # fmt: skip
_WIDTHS = {8: "e4m3", 16: "bf16", 32: "f32", 4: "e2m1"}  # the type for a width where the name gives none


class Interned:
    """Numbered values, each kept once: repeated text occurs once in the page."""

    def __init__(self) -> None:
        self.kept: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        """Return the number of a value, from 0; a new value gets the next number."""
        return self.kept.setdefault(value, len(self.kept))

    def listed(self) -> list[Any]:
        """Return the values in the order of their numbers."""
        return list(self.kept)


def fragment_rows(names: Sequence[str] = ()) -> dict[str, Any]:
    """Return entries of COLUMNS for the named fragments (all by default), and the lists that the entries refer to.

    mma.m16n8k16.bf16.a: thread 5 adds (1, 2), value 3 adds (8, 1): element (9, 3). A list holds None for a thread or a
    value without an element. A sum outside the shape is a place without an element.
    """
    sequences, words = Interned(), Interned()
    rows = [_fragment_row(fragment(name), sequences, words) for name in names or fragments()]
    return {"columns": COLUMNS, "rows": rows, "sequences": sequences.listed(), "words": words.listed()}


def _fragment_row(each: Fragment, sequences: Interned, words: Interned) -> list[Any]:
    return [
        each.name,
        *each.shape,
        each.threads,
        each.values,
        *(sequences.number(terms) for terms in fragment_terms(each)),
        each.per_register,
        each.slot_bits,
        each.element_bits,
        each.element_shift,
        *(words.number(word) for word in (each.units, _element(each), each.since, each.evidence.what)),
        words.number(str(each.source)),
    ]


Terms = tuple[int | None, ...]


def fragment_terms(each: Fragment) -> tuple[Terms, Terms, Terms, Terms]:
    """Return the terms of the thread for row and col, then those of the value. Raises RuntimeError for other maps."""
    row, col = each.elements
    used = row >= 0
    thread, value = int(used.sum(1).argmax()), int(used.sum(0).argmax())
    by_thread = [np.where(used[:, value], table[:, value], -1) for table in (row, col)]
    by_value = [np.where(used[thread], table[thread] - table[thread, value], -1) for table in (row, col)]
    threads, values = np.asarray(used.any(1)), np.asarray(used.any(0))
    made = [down[:, None] + across[None, :] for down, across in zip(by_thread, by_value, strict=True)]
    inside = threads[:, None] & values[None, :] & (made[0] < each.shape[0]) & (made[1] < each.shape[1])
    if not ((inside == used).all() and (made[0] == row)[used].all() and (made[1] == col)[used].all()):
        raise RuntimeError(f"{each.name}: row and col are no sums of what thread and value add")
    lists = [_terms(by_thread[0], threads), _terms(by_thread[1], threads)]
    return lists[0], lists[1], _terms(by_value[0], values), _terms(by_value[1], values)


def _terms(terms: NDArray[np.int64], used: NDArray[np.bool_]) -> Terms:
    return tuple(term if is_used else None for term, is_used in zip(terms.tolist(), used.tolist(), strict=True))


def _element(each: Fragment) -> str:
    """Return the element type that the page selects: the last type of that width in the name, "" where none fits."""
    named = [row for word in each.name.split(".") for row in ELEMENTS if row.name == word]
    fitting = [row.name for row in named if row.code_bits == each.element_bits]
    if fitting:
        return fitting[-1]
    if each.element_bits == 32 and any(row.is_integer for row in named):
        return "s32"
    return _WIDTHS.get(each.element_bits, "")


Shape = tuple[int, int]
Places = NDArray[np.int64]
_PROBES = ((1, 1), (2, 1), (1, 2), (2, 3), (3, 2))  # tiles down and across: three to solve, two to check


def scale_rows() -> list[dict[str, Any]]:
    """Return every scale layout. Element (row, block) lies at within[row % down][block % across] plus the terms of its
    tile.

    Each term is [a, b, c] for a + b * rows + c * blocks of the padded shape. nvidia_128x4: the next tile across lies
    512 further, the next tile down 128 * blocks.
    """
    return [_scale_row(each) for each in SCALE_LAYOUTS]


def _scale_row(each: ScaleLayout) -> dict[str, Any]:
    """Return the entry of a layout."""
    down, across, within = scale_terms(each)
    return {
        **facts_of(each, "name tile pads elementBytes=element_bytes summary chips", EVIDENCE),
        "down": down.tolist(),
        "across": across.tolist(),
        "within": [column.tolist() for column in np.moveaxis(within.reshape(-1, 3), 1, 0) if column.any()],
        "terms": [at for at in range(3) if within[..., at].any()],
        "source": str(each.source),
    }


def scale_terms(each: ScaleLayout) -> tuple[Places, Places, Places]:
    """Return the terms (1, rows, blocks) of each tile down, each tile across, and each place in a tile.

    Raises RuntimeError where the places of a padded shape are not such sums.
    """
    tall, broad = each.tile
    within = _solved(lambda padded: _places(each, padded)[:tall, :broad], each.tile)
    down = _solved(lambda padded: _places(each, padded)[tall, 0] - _places(each, padded)[0, 0], each.tile, (1, 0))
    across = _solved(lambda padded: _places(each, padded)[0, broad] - _places(each, padded)[0, 0], each.tile, (0, 1))
    for tiles in _PROBES:
        padded = (tall * tiles[0], broad * tiles[1])
        rows, blocks = np.ogrid[: padded[0], : padded[1]]
        scale = np.array([1, *padded])
        made = (within @ scale)[rows % tall, blocks % broad] + (down @ scale) * (rows // tall)
        if not (made + (across @ scale) * (blocks // broad) == _places(each, padded)).all():
            raise RuntimeError(f"{each.name}: places are no sums of what a tile and a place in it add")
    return down, across, within


def _places(each: ScaleLayout, padded: Shape) -> Places:
    rows, blocks = np.ogrid[: padded[0], : padded[1]]
    return np.asarray(each.offset(rows, blocks, padded)) // each.element_bytes


def _solved(asked: Callable[[Shape], Places], tile: Shape, more: Shape = (0, 0)) -> Places:
    """Return a, b and c of a + b * rows + c * blocks, from three shapes with `more` tiles down and across."""
    first, taller, broader = (
        np.asarray(asked((tile[0] * (1 + more[0] + a), tile[1] * (1 + more[1] + b))))
        for a, b in ((0, 0), (1, 0), (0, 1))
    )
    by_row, by_block = (taller - first) // tile[0], (broader - first) // tile[1]
    rest = first - by_row * tile[0] * (1 + more[0]) - by_block * tile[1] * (1 + more[1])
    return np.stack([rest, by_row, by_block], axis=-1)


_MOST_ANSWERS = 6  # bits of the widest field whose answers are written out


class _Asked(dict[str, Value]):
    """Some fields of a descriptor; a lookup of a missing field raises its name."""

    def __missing__(self, name: str) -> Value:
        raise _WantedError(name)


class _WantedError(Exception):
    """A rule reads a field that has no value yet."""


def descriptor_rows() -> list[dict[str, Any]]:
    """Return the descriptors with a published bit layout; the driver's tensor map has none.

    wgmma-smem has 64 bits and five fields; its rule answers by swizzle, then by base_offset.
    """
    return [_descriptor_row(each) for each in DESCRIPTORS if isinstance(each, Descriptor)]


def _descriptor_row(each: Descriptor) -> dict[str, Any]:
    covered = sum((1 << field.width) - 1 << field.low for field in each.fields)
    return {
        **facts_of(each, "kind bits summary", EVIDENCE),
        "fields": [_field_row(field) for field in sorted(each.fields, key=lambda field: field.low)],
        "order": [field.name for field in each.fields],
        "reserved": f"{(1 << each.bits) - 1 & ~covered:#x}",
        "rules": [rule_table(rule, each) for rule in each.rules],
        "patterns": _patterns(each) if each in matrices.MATRIX_DESCRIPTORS else {},
        "example": f"{_example(each):#0{each.bits // 4 + 2}x}",
        "source": str(each.source),
    }


def _field_row(field: Field) -> dict[str, Any]:
    few = field.width <= _MOST_ANSWERS
    return {
        **facts_of(field, "name low width bits meaning unit"),
        "values": [field.value(stored) for stored in range(1 << field.width)] if few else None,
        "complaints": [field.complaint(stored) for stored in range(1 << field.width)] if few else None,
    }


def remark_words() -> dict[str, Any]:
    """Return templates of remarks about matrices in shared memory, and the unit of a base offset."""
    words = "at=PATTERN_AT moved=PATTERN_MOVED unmoved=PATTERN_UNMOVED near=NEAR_GROUPS offsetBytes=BASE_OFFSET_BYTES"
    return facts_of(matrices, words)


def _patterns(each: Descriptor) -> dict[str, tuple[int, int]]:
    """Return (bytes after which the pattern repeats, bytes of a group of rows) for each swizzle of a descriptor."""
    field = next(field for field in each.fields if field.name == "swizzle")
    names = [str(name) for _, name in field.names]
    return {name: (swizzle(name).repeat_bytes, matrices.group_bytes(name)) for name in names}


def rule_table(rule: Rule, each: Descriptor, chosen: Mapping[str, Value] | None = None) -> Any:
    """Return the answer of a rule: text, None, or {"field": name, "cases": an answer for each stored value}.

    The rule is called with more and more of the fields that it reads. Fields that make no difference are dropped.
    """
    fields: Fields = _Asked(chosen or {})
    try:
        return rule(fields)
    except _WantedError as wanted:
        field = next(field for field in each.fields if field.name == wanted.args[0])
        values = [field.value(stored) for stored in range(1 << field.width)]
        cases = [rule_table(rule, each, {**fields, field.name: value}) for value in values]
        return cases[0] if all(case == cases[0] for case in cases) else {"field": field.name, "cases": cases}


def _example(each: Descriptor) -> int:
    """Return a legal descriptor to begin with: a field without a default gets the middle of its legal values."""
    chosen: Fields = {}
    for field in each.fields:
        if field.default is None:
            legal = [stored for stored in range(1 << min(field.width, 8)) if field.complaint(stored) is None]
            chosen[field.name] = field.value(legal[len(legal) // 2])
    return each.encode(**chosen)
