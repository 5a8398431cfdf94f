"""The page of `refsim explore`: one HTML file with its style, its script and the tables of the model."""

import json
import math
from functools import cache
from importlib.resources import files
from typing import Any

from refsim import __version__
from refsim.cli.answers.anatomy import kind_of
from refsim.cli.answers.explorer.holdings import fragment_rows
from refsim.cli.answers.explorer.scales import scale_rows
from refsim.cli.answers.explorer.words import descriptor_rows, remark_words
from refsim.errors import RefsimError
from refsim.formats import ELEMENTS, ElementType, Format
from refsim.layouts.banks import BANK_BYTES, BANKS
from refsim.layouts.swizzles import SWIZZLES, Swizzle
from refsim.layouts.tiles import K, atom_rows, check_major
from refsim.render.svg import DARK, HUES, LIGHT, SHADES, fill

EXACT_BITS = 53  # JavaScript's integers are exact to here; longer codes are written as text


def element_rows() -> list[dict[str, Any]]:
    """Return every type that a matrix may hold: the formats of `refsim decode`, f64, and the integers.

    e4m3 has 4 exponent and 3 mantissa bits, quantum 2^-9, and the range [0x7f, 0x7f, "nan", "nan"] among its kinds.
    """
    rows = [_format_row(row) if isinstance(row, Format) else _integer_row(row) for row in ELEMENTS]
    return sorted(rows, key=lambda row: row["bits"] > EXACT_BITS)  # rarely used types come last


def _format_row(row: Format) -> dict[str, Any]:
    """Return the entry of a format."""
    return {
        "name": row.name,
        "aliases": list(row.aliases),
        "bits": row.code_bits,
        "signed": row.signed,
        "exponent": row.exponent_bits,
        "mantissa": row.mantissa_bits,
        "padding": row.padding_bits,
        "bias": row.bias,
        "binadesFromZero": row.binades_from_zero,
        "twosComplement": row.twos_complement,
        "quantum": row.quantum,
        "one": _number(_one(row), row),
        "kinds": [[_number(first, row), _number(last, row), *said] for first, last, *said in kinds_of(row)],
        "about": row.specials.value,
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
        said = [kind_of(code, row, row.value(code)), _special(row.value(code))]
        if found and found[-1][2:] == said:
            continue
        if found:
            found[-1][1] = first - 1
        found.append([first, limit - 1, *said])
    return found


def _one(row: Format) -> int:
    """Return the code of 1."""
    return round(1 / row.quantum) if row.twos_complement else row.bias << row.mantissa_bits + row.padding_bits


def _number(code: int, row: Format) -> int | str:
    """Return a code in a form that JavaScript reads exactly: an integer, or text for wide codes."""
    return str(code) if row.code_bits > EXACT_BITS else code


def _special(value: float) -> str:
    return "nan" if math.isnan(value) else str(value) if math.isinf(value) else ""


def memory_rows() -> dict[str, Any]:
    """Return the swizzles with the atoms of their tiles, and the banks.

    128B moves 3 bits from 3 places above bit 4.
    """
    return {"swizzles": [_memory_row(each) for each in SWIZZLES], "banks": BANKS, "bankBytes": BANK_BYTES}


def _memory_row(pattern: Swizzle) -> dict[str, Any]:
    return {
        "name": pattern.name,
        "bits": pattern.bits,
        "base": pattern.base,
        "shift": pattern.shift,
        "span": pattern.span_bytes,
        "repeat": pattern.repeat_bytes,
        "chunk": pattern.chunk_bytes,
        "atomRows": atom_rows(pattern),
        "refusal": _refusal(pattern),
        "evidence": pattern.evidence.what,
        "source": str(pattern.source),
    }


def _refusal(pattern: Swizzle) -> str:
    """Return why no tile has rows of this swizzle, "" where tiles do."""
    try:
        check_major(K, pattern)
    except RefsimError as problem:
        return problem.what
    return ""


SCRIPTS = (
    "model.js",
    "dump.js",
    "grid.js",
    "panel.js",
    "fragment.js",
    "format.js",
    "swizzle.js",
    "scales.js",
    "descriptor.js",
    "dump_view.js",
    "address.js",
    "page.js",
)


def tables() -> dict[str, Any]:
    """Return all data of the page: element types, fragments, swizzles, scale layouts, descriptors and colors."""
    return {
        "version": __version__,
        "palette": {mode: [fill(colour, mode) for colour in range(HUES * SHADES)] for mode in (LIGHT, DARK)},
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
