"""A check of a buffer of scales: the layouts that fit its size and bytes, and the recipe that gives these scales."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.cli.delivery import AGREED, FAILED, Answer
from refsim.errors import RefsimError
from refsim.files import Stored
from refsim.formats import E8M0, F32, UE4M3, Format
from refsim.layouts.scales import SCALE_LAYOUTS, ScaleLayout
from refsim.render import Bits, Cell, Column, Document, Table, Wording
from refsim.scaling import BLOCK_FORMATS, BlockFormat, recipes_of
from refsim.scaling.blocks import quantize

PLAIN = "rows"
LAYOUTS = (
    Column("layout", strong=True),
    Column("chips", drop=2),
    Column("fits"),
    Column("why", drop=1),
    Column("pads", drop=3),
    Column("recipe", strong=True),
    Column("differ", align="right"),
)
RULES = (
    Column("format", strong=True, of="block.name"),
    Column("recipe", strong=True),
    Column("differ", align="right"),
    Column("row", label="first", align="right", of=lambda rule: rule.first[0]),
    Column("block", label=" ", gap=1, of=lambda rule: rule.first[1]),
    Column("given", gap=3, of=lambda rule: rule.first[2]),
    Column("expected", of=lambda rule: rule.first[3]),
)


@dataclass(frozen=True)
class Fit:
    """One layout with the matrix of scales that the buffer holds in it, or with None and the reason why it cannot."""

    layout: ScaleLayout | None
    why: str
    pads: str = ""
    matrix: NDArray[Any] | None = None
    mistake: str = ""

    @property
    def name(self) -> str:
        """Return the name of the layout, with the mistake where there is one."""
        own = PLAIN if self.layout is None else self.layout.name
        return f"{own}, {self.mistake}" if self.mistake else own


@dataclass(frozen=True)
class Made:
    """The scales that a recipe computes from the values."""

    block: BlockFormat
    recipe: str
    scales: NDArray[Any]


@dataclass(frozen=True)
class Rule:
    """A recipe's scales compared with the buffer: how many differ, and (row, block, given, expected) of the first."""

    block: BlockFormat
    recipe: str
    differ: int
    first: tuple[Cell, ...]


def scale_formats(stored: Stored) -> tuple[tuple[Format, ...], str]:
    """Return the formats that the codes may have, and why others are excluded."""
    if stored.codes.dtype.itemsize == F32.code_dtype.itemsize:
        return (F32,), "words of 32 bits: float32 scales"
    if stored.codes.dtype.itemsize != 1:
        what = f"scales hold {stored.format}"
        raise RefsimError("bad-dtype", what, rule="bytes of e8m0 or ue4m3, or float32", help="give -t FORMAT")
    signs = int((stored.codes >= UE4M3.code_limit).sum())
    if signs:
        return (E8M0,), f"not ue4m3: {signs} bytes have bit 7 set"
    if stored.format is UE4M3:
        return (UE4M3,), "ue4m3, as the file says"
    return (E8M0, UE4M3), "e8m0 or ue4m3: no byte has bit 7 set"


def fits(stored: Stored, shape: tuple[int, int]) -> list[Fit]:
    """Return every layout, and the plain matrix, compared with the size of the buffer."""
    codes = stored.codes.reshape(-1)
    found = [_plain(codes, shape)]
    for layout in SCALE_LAYOUTS:
        if layout.element_bytes != codes.dtype.itemsize:
            found.append(Fit(layout, f"its elements have {layout.element_bytes} B"))
            continue
        try:
            size = layout.size_bytes(shape)
        except RefsimError as error:
            found.append(Fit(layout, error.what))
            continue
        if size != codes.nbytes:
            found.append(Fit(layout, f"needs {size} B, the buffer has {codes.nbytes}"))
            continue
        pads = codes[layout.pads_of(shape) // layout.element_bytes]
        found.append(Fit(layout, f"{size} B", _padding(pads), layout.unshuffle(codes, shape)))
    return found


def mistakes(stored: Stored, shape: tuple[int, int]) -> "Iterator[Fit]":
    """Yield the matrices of scales that were transposed before they were laid out, or shuffled twice."""
    codes, across = stored.codes.reshape(-1), (shape[1], shape[0])
    if codes.size == shape[0] * shape[1]:
        yield Fit(None, f"{codes.nbytes} B", matrix=codes.reshape(across).T, mistake="transposed")
    for layout in SCALE_LAYOUTS:
        if layout.element_bytes != codes.dtype.itemsize or not layout.pads:
            continue
        if layout.size_bytes(across) == codes.nbytes:
            yield Fit(layout, f"{codes.nbytes} B", matrix=layout.unshuffle(codes, across).T, mistake="transposed")
        if layout.size_bytes(shape) == codes.nbytes:
            once = layout.unshuffle(codes, layout.padded(shape)).reshape(-1)
            yield Fit(layout, f"{codes.nbytes} B", matrix=layout.unshuffle(once, shape), mistake="shuffled twice")


def _plain(codes: NDArray[Any], shape: tuple[int, int]) -> Fit:
    if codes.size == shape[0] * shape[1]:
        return Fit(None, f"{codes.nbytes} B", "none", codes.reshape(shape))
    return Fit(None, f"needs {shape[0] * shape[1] * codes.itemsize} B, the buffer has {codes.nbytes}")


def _padding(pads: NDArray[Any]) -> str:
    if not pads.size:
        return "none"
    values = np.unique(pads)
    shown = ", ".join(str(Bits(int(value), 8 * pads.itemsize)) for value in values[:3])
    return f"{pads.size}: {shown}{' ...' if len(values) > 3 else ''}"


def made_of(values: Stored, shape: tuple[int, int], formats: tuple[Format, ...]) -> list[Made]:
    """Return the scales of every recipe whose block shape fits."""
    found = []
    for block in BLOCK_FORMATS:
        if block.scale not in formats or values.codes.shape[-1] != block.width * shape[1]:
            continue
        x = values.codes.reshape(shape[0], -1)
        for recipe in recipes_of(block):
            scales = quantize(x, block, recipe=recipe, input_format=values.format).scales
            found.append(Made(block, recipe.name, scales))
    return found


def rules(matrix: NDArray[Any], made: list[Made]) -> list[Rule]:
    """Return every recipe compared with a matrix of scales, the nearest first."""
    found = []
    for each in made:
        wrong = np.argwhere(each.scales != matrix)
        first: tuple[Cell, ...] = (None,) * 4
        if len(wrong):
            row, at = (int(index) for index in wrong[0])
            first = row, at, *(Bits(int(scales[row, at]), 8 * matrix.itemsize) for scales in (matrix, each.scales))
        found.append(Rule(each.block, each.recipe, len(wrong), first))
    return sorted(found, key=lambda rule: rule.differ)


def checked(stored: Stored, shape: tuple[int, int], values: Stored | None) -> Answer:
    """Return the layouts that fit and the others; with the values, the recipe that gives the scales in each layout."""
    formats, said = scale_formats(stored)
    all_fits = fits(stored, shape)
    made = made_of(values, shape, formats) if values is not None else []
    held = {each.name: rules(each.matrix, made) for each in all_fits if each.matrix is not None and values}
    agreed = any(each.matrix is not None for each in all_fits)
    if held:
        agreed = any(each and each[0].differ == 0 for each in held.values())
    for each in mistakes(stored, shape) if made and not agreed else ():
        if (found := rules(np.asarray(each.matrix), made))[0].differ == 0:
            all_fits, held[each.name] = [each, *all_fits], found
    rows = tuple(
        _cells(each, held.get(each.name, [])) for each in sorted(all_fits, key=lambda each: each.matrix is None)
    )
    tables: list[Table | Wording] = [Wording((said,), {"scale_formats": [each.name for each in formats]})]
    tables.append(Table(LAYOUTS, rows, key="layouts"))
    best = min(held.items(), key=lambda each: each[1][0].differ if each[1] else stored.codes.size, default=None)
    if best and best[1]:
        tables.append(Table.of(RULES, best[1], key="recipes"))
    title = f"{stored.codes.nbytes} B for {shape[0]} x {shape[1]} scales"
    return Answer(Document(tuple(tables), title), AGREED if agreed else FAILED)


def _cells(fit: Fit, held: list[Rule]) -> tuple[Cell, ...]:
    nearest = held[0] if held else None
    names = [f"{rule.recipe} ({rule.block})" for rule in held if nearest and rule.differ == nearest.differ]
    recipe = f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}" if names else None
    chips = "any" if fit.layout is None else fit.layout.chips
    yes = "mistake" if fit.mistake else "fits" if fit.matrix is not None else "cannot be"
    return fit.name, chips, yes, fit.why, fit.pads or None, recipe, nearest.differ if nearest else None
