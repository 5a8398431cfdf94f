"""Swizzles and tiles of shared memory as data for the page."""

from typing import Any

from refsim.errors import RefsimError
from refsim.layouts.banks import BANK_BYTES, BANKS
from refsim.layouts.swizzles import SWIZZLES, Swizzle
from refsim.layouts.tiles import K, atom_rows, check_major


def memory_rows() -> dict[str, Any]:
    """Return the swizzles with the atoms of their tiles, and the banks.

    128B moves 3 bits from 3 places above bit 4.
    """
    return {"swizzles": [_row(each) for each in SWIZZLES], "banks": BANKS, "bankBytes": BANK_BYTES}


def _row(pattern: Swizzle) -> dict[str, Any]:
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
