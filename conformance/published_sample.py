"""The sample of the published dot products that is bundled: of each set the dot products that tell most wrong entries apart.

An entry of the model is made wrong in one parameter at a time: fraction bits, rounding, length of a step, order, the way of C,
the exponent of a zero. A dot product tells a wrong entry apart where the results differ. The dot products are chosen one after
another; those count most that tell entries apart which few of the chosen ones do.
"""

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import F16
from refsim.numerics.methods import (
    BYTE_PAIRS,
    EARLY,
    LATE,
    RNE_F16,
    RNE_F32,
    RZ_E8M13,
    RZ_F32,
    TRUNCATED,
    Order,
    Rounding,
)
from refsim.numerics.profiles import profile
from refsim.numerics.rows import Profile
from refsim.silicon.tensor_witness import DotProducts

COUNT = {"mma_sync_sm89_fp8": 16, "vectors": 1 << 10}
OF_A_SET = 128
RZ_F16 = Rounding("rz-f16", F16, 10)
ROUNDINGS = {RZ_F32: (RNE_F32, RZ_E8M13), RZ_E8M13: (RZ_F32,), RNE_F16: (RZ_F16,)}
FACTS = ("chip", "target", "unit", "k")
ARRAYS = ("a", "b", "c", "d", "a_scale", "b_scale")


def wrong_entries(row: Profile) -> Iterator[tuple[str, Profile]]:
    """The entry with one parameter changed, and what was changed; nothing of an entry that adds exactly."""
    if not row.method.aligns or row.fraction is None or row.zero_exponent is None:
        return
    for more in (-5, -2, -1, 1, 2):
        yield f"fraction {more:+}", replace(row, fraction=row.fraction + more)
    for more in (-1, 1):
        yield f"zero {more:+}", replace(row, zero_exponent=row.zero_exponent + more)
    if row.method is not TRUNCATED:
        return
    for rounding in ROUNDINGS[row.rounding]:
        yield str(rounding), replace(row, rounding=rounding)
    if row.order is BYTE_PAIRS:
        yield "ascending", replace(row, order=Order.ASCENDING)
        yield "C early", replace(row, c_enters=EARLY)
        return
    yield "half the length", replace(row, length=row.length // 2)
    yield "twice the length", replace(row, length=row.length * 2)
    yield "C late", replace(row, c_enters=LATE)


def row_of(each: DotProducts) -> Profile:
    a, b, d = each.types
    return profile(each.target, each.unit, a, b, d, each.k)


def told_apart(each: DotProducts) -> dict[str, NDArray[np.bool_]]:
    """For each wrong entry, the dot products that tell it apart."""
    return {name: each.modelled(row) != each.d for name, row in wrong_entries(row_of(each))}


def chosen(telling: NDArray[np.bool_], count: int) -> NDArray[np.intp]:
    """The dot products to keep, in their order: `telling` has a row for each wrong entry."""
    if telling.shape[1] <= count:
        return np.arange(telling.shape[1])
    found: list[int] = []
    times = np.zeros(len(telling))
    left = np.ones(telling.shape[1], np.bool_)
    for _ in range(count):
        worth = (telling / (1.0 + times)[:, None] ** 2).sum(axis=0) * left
        place = int(np.argmax(worth)) if worth.any() else int(np.argmax(left))
        found.append(place)
        left[place] = False
        times += telling[:, place]
    return np.array(sorted(found))


@dataclass
class Sample:
    """The dot products that are kept so far; results of one set keep the same ones, so that they share operands."""

    kept: dict[str, list[DotProducts]] = field(default_factory=dict)

    def add(self, file: str, each: DotProducts) -> None:
        """Keep a set of dot products until it is known what else its file holds; chains of instructions are left out."""
        if each.a.shape[1] == each.k:
            name = file if file not in COUNT else f"{file} {each.unit} {' '.join(each.types)} {each.k}"
            name += f" {each.scale_format}" if each.scale_format else ""
            if each.a_scale is not None:
                name += f" {each.a_scale.shape[1]}"
            self.kept.setdefault(name, []).append(each)

    def cells(self) -> Iterator[tuple[str, DotProducts]]:
        """The sample: of each file and type of result one entry."""
        places: dict[bytes, NDArray[np.intp]] = {}
        for name, members in self.kept.items():
            count = next((some for file, some in COUNT.items() if name.startswith(file)), OF_A_SET)
            if count != OF_A_SET:
                joined = members[0]
                parts = [_picked(each, chosen(_telling([each]), count)) for each in members]
                arrays = {
                    key: np.concatenate([getattr(part, key) for part in parts])
                    for key in ARRAYS
                    if getattr(joined, key) is not None
                }
                yield name, replace(joined, **arrays)
                continue
            operands = b"".join(each.tobytes() for each in (members[0].a, members[0].b, members[0].c))
            picked = places.setdefault(operands, chosen(_telling(members), count))
            for each in members:
                yield f"{name} {each.types[2]}", _picked(each, picked)

    def write(self, path: Path) -> None:
        """Write arrays and facts; equal arrays are stored once."""
        members: dict[str, NDArray[Any]] = {}
        stored: dict[tuple[Any, ...], str] = {}
        rows: dict[str, Any] = {}
        for name, each in self.cells():
            arrays = {key: getattr(each, key) for key in ARRAYS if getattr(each, key) is not None}
            named = {}
            for key, array in arrays.items():
                same = (array.dtype.str, array.shape, array.tobytes())
                named[key] = stored.setdefault(same, f"{name} {key}")
                members[named[key]] = array
            rows[name] = {key: getattr(each, key) for key in FACTS} | {"types": list(each.types), "arrays": named}
            if each.scale_format:
                rows[name]["scale_format"] = each.scale_format
        content = BytesIO()
        np.savez(content, **members)
        path.write_bytes(lzma.compress(content.getvalue(), preset=9 | lzma.PRESET_EXTREME))
        lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        head = (
            '{\n  "device": "published results",\n  "drawn_by": "conformance/published_sample.py",\n  "recordings": {\n'
        )
        path.with_suffix("").with_suffix(".json").write_text(f"{head}{lines}\n  }}\n}}\n", "utf-8")


def _telling(members: list[DotProducts]) -> NDArray[np.bool_]:
    rows = [telling for each in members for telling in told_apart(each).values()]
    return np.array(rows) if rows else np.zeros((0, members[0].d.size), np.bool_)


def _picked(each: DotProducts, places: NDArray[np.intp]) -> DotProducts:
    return replace(each, **{key: getattr(each, key)[places] for key in ARRAYS if getattr(each, key) is not None})
