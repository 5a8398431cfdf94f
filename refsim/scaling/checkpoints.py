"""Tensors of a safetensors file quantized into another, and back: a part at a time, so that any file fits the
memory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from refsim.conversions import decode, round_bits
from refsim.errors import Kind, RefsimError
from refsim.files.parts import PIECE_BYTES, PartFile, Planned, TensorFile, planned, source, target
from refsim.files.safetensors import BITS, DTYPE_OF, FORMAT_KEY, StoredTensor
from refsim.formats import BF16, F32, Format
from refsim.scaling.block_formats import BlockFormat, block_format
from refsim.scaling.block_pass import WideBlocks, largest_of_tensor
from refsim.scaling.blocks import Blocks, quantize
from refsim.scaling.mx_recipes import MxRecipe
from refsim.scaling.recipes import Recipe, recipe_named
from refsim.scaling.rows import NAN_RULES
from refsim.scaling.wide import WIDE_FORMATS, one_of

BLOCKS_NOTE = "refsim.blocks."
SCALES, TENSOR_SCALE = ".scales", ".tensor_scale"
BYTE = 8
Report = Callable[[str, int, int], None]
"""Called with a tensor's key, the bytes read so far, and the bytes to read in all."""


@dataclass(frozen=True)
class FileTensor:
    """The outcome for one tensor: `done` is "quantized", "dequantized" or "copied"; `why` is the reason of a copy."""

    key: str
    shape: tuple[int, ...]
    done: str
    why: str
    bytes_before: int
    bytes_after: int


def quantize_file(
    path: Path,
    to: Path,
    format: str | BlockFormat,
    *,
    recipe: str | Recipe | None = None,
    keys: tuple[str, ...] = (),
    overwrite: bool = False,
    report: Report = lambda key, done, planned: None,
) -> list[FileTensor]:
    """Write a copy of a safetensors file with every matrix quantized in blocks along its last dimension.

    All other tensors are copied. A tensor `w` becomes codes `w`, scales `w.scales` and for NVFP4 `w.tensor_scale`, the
    scale as the recipe keeps it; the metadata names format and recipe under `refsim.blocks.w`. `keys` are patterns
    (`*.weight`) of the tensors to quantize; a matching tensor that does not fit is then an error. A call after an
    interrupted call resumes it. Returns one outcome for each tensor. Raises RefsimError as `files.load` does.
    """
    row = block_format(format)
    chosen = recipe_named(recipe, row)
    with source(path) as given:
        why = {key: _reason(region, row, keys) for key, region in given.regions.items()}
        _require_meant(given, why, keys, row)
        plan, notes = _plan_of_quantized(given, why, row, chosen)
        report = _counted(report, given)
        with target(to, plan, notes, given, overwrite=overwrite) as made:
            for key, region in given.regions.items():
                if key not in made.done:
                    if why[key]:
                        _copy(given, made, region)
                        made.finish(key)
                    else:
                        made.finish(key, *_quantized(given, made, region, row, chosen))
                report(key, region.end - region.begin, 0)
        return [_told(given, plan, key, why[key], "quantized") for key in given.regions]


def dequantize_file(
    path: Path,
    to: Path,
    format: str | Format = BF16,
    *,
    overwrite: bool = False,
    report: Report = lambda key, done, planned: None,
) -> list[FileTensor]:
    """Write a copy of a file of `quantize_file` with values in bf16, f16 or f32, each rounded once.

    All other tensors are copied. Returns one outcome for each tensor.
    """
    wide = one_of(format, WIDE_FORMATS, "to")
    with source(path) as given:
        meant = {
            key.removeprefix(BLOCKS_NOTE): text for key, text in given.metadata.items() if key.startswith(BLOCKS_NOTE)
        }
        if not meant:
            rule = f"metadata {BLOCKS_NOTE}<key> names it: refsim quantize writes that"
            raise RefsimError("nothing-to-do", "no tensor says its block format", where=str(path), rule=rule)
        spent = {key + end for key in meant for end in (SCALES, TENSOR_SCALE)}
        _require_parts(given, meant)
        plan, notes = _plan_of_values(given, meant, spent, wide)
        report = _counted(report, given)
        with target(to, plan, notes, given, overwrite=overwrite) as made:
            for key, region in given.regions.items():
                if key in plan and key not in made.done:
                    (_dequantized if key in meant else _copied)(given, made, region, meant.get(key, ""), wide)
                    made.finish(key)
                report(key, region.end - region.begin, 0)
        return [_told(given, plan, key, "" if key in meant else "no blocks", "dequantized") for key in plan]


def _reason(region: StoredTensor, row: BlockFormat, keys: tuple[str, ...]) -> str:
    """Return why a tensor is copied, or an empty string where it is quantized."""
    if keys and not any(fnmatchcase(region.key, each) for each in keys):
        return "not asked for"
    if region.format not in WIDE_FORMATS:
        return f"holds {region.format or region.dtype}"
    if len(region.shape) < 2 or 0 in region.shape:
        return "no matrix"
    return "" if region.shape[-1] % row.width == 0 else f"K is not a multiple of {row.width}"


def _require_meant(given: TensorFile, why: Mapping[str, str], keys: tuple[str, ...], row: BlockFormat) -> None:
    """Raise where a pattern of `keys` matches no tensor or one that does not fit, or no tensor can be quantized."""
    for pattern in keys:
        found = [key for key in given.regions if fnmatchcase(key, pattern)]
        if not found:
            raise RefsimError("unknown-key", f"no tensor is called {pattern!r}", where=given.reader.where)
        for key in found:
            if why[key]:
                what = f"tensor {key!r} of shape {given.regions[key].shape}: {why[key]}"
                raise RefsimError("bad-shape", what, where=str(row))
    if all(why.values()):
        what = f"no tensor is a matrix of bf16, f16 or f32 with K a multiple of {row.width}"
        raise RefsimError("nothing-to-do", what, where=given.reader.where)


def _plan_of_quantized(
    given: TensorFile, why: Mapping[str, str], row: BlockFormat, recipe: Recipe
) -> tuple[dict[str, Planned], dict[str, str]]:
    """Return dtype and shape of every tensor of the quantized file, by key, and the file's metadata."""
    plan: dict[str, Planned] = {}
    notes = _notes(given, [key for key in given.regions if why[key]])
    for key, region in given.regions.items():
        if why[key]:
            plan[key] = Planned(region.dtype, region.shape)
            continue
        notes[BLOCKS_NOTE + key] = f"{row} {recipe}"
        _add(plan, notes, key, row.element, region.shape)
        _add(plan, notes, key + SCALES, row.scale, (*region.shape[:-1], region.shape[-1] // row.width))
        if row.two_levels:
            _add(plan, notes, key + TENSOR_SCALE, F32, (1,))
        taken = [each for each in (key + SCALES, key + TENSOR_SCALE) if each in given.regions]
        if taken:
            raise RefsimError("name-taken", f"the file has a tensor called {taken[0]!r}", where=given.reader.where)
    return plan, notes


def _plan_of_values(
    given: TensorFile, meant: Mapping[str, str], spent: set[str], wide: Format
) -> tuple[dict[str, Planned], dict[str, str]]:
    """Return dtype and shape of every tensor of the dequantized file, by key, and the file's metadata."""
    kept = [key for key in given.regions if key not in spent and key not in meant]
    notes = {key: text for key, text in _notes(given, kept).items() if not key.startswith(BLOCKS_NOTE)}
    plan = {key: Planned(given.regions[key].dtype, given.regions[key].shape) for key in kept}
    for key in meant:
        _add(plan, notes, key, wide, given.regions[key].shape)
    return plan, notes


def _notes(given: TensorFile, kept: list[str]) -> dict[str, str]:
    """Return the metadata, with the formats of copied tensors whose dtype does not determine the format."""
    notes = dict(given.metadata)
    for key in kept:
        region = given.regions[key]
        if region.format is not None and DTYPE_OF.get(region.format) != region.dtype:
            notes[FORMAT_KEY + key] = region.format.name
    return notes


def _add(plan: dict[str, Planned], notes: dict[str, str], key: str, format: Format, shape: tuple[int, ...]) -> None:
    """Add one tensor to the plan, with a note of its format where the dtype does not determine it."""
    plan[key] = planned(format, shape)
    if plan[key].dtype != DTYPE_OF.get(format):
        notes[FORMAT_KEY + key] = format.name


def _parts(rows: int, columns: int, format: Format) -> Iterator[tuple[int, int]]:
    """Yield (first row, rows) of parts of about 16 MiB."""
    step = max(1, PIECE_BYTES // max(1, columns * format.code_dtype.itemsize))
    for first in range(0, rows, step):
        yield first, min(step, rows - first)


def _quantized(
    given: TensorFile, made: PartFile, region: StoredTensor, row: BlockFormat, recipe: Recipe
) -> tuple[str, ...]:
    """Write a tensor's blocks and return the keys of its scales."""
    assert region.format is not None
    rows, columns = given.rows(region)
    kept = None if isinstance(recipe, MxRecipe) else _kept(given, region, recipe)
    for first, count in _parts(rows, columns, region.format):
        part = given.codes(region, first, count)
        found = quantize(part, row, recipe=recipe, tensor_scale=kept, input_format=region.format)
        made.write(region.key, row.element, first * columns, found.codes)
        made.write(region.key + SCALES, row.scale, first * (columns // row.width), found.scales)
    if kept is None:
        return (region.key + SCALES,)
    made.write(region.key + TENSOR_SCALE, F32, 0, np.array([kept], np.float32).view(np.uint32))
    return region.key + SCALES, region.key + TENSOR_SCALE


def _kept(given: TensorFile, region: StoredTensor, recipe: Any) -> np.float32:
    """Return a recipe's value for a whole tensor; a first pass over it finds the largest magnitude."""
    assert region.format is not None
    rows, columns = given.rows(region)
    peaks = [
        largest_of_tensor(
            WideBlocks(given.codes(region, first, count), region.format), ignores_nan=recipe.nan == NAN_RULES[1]
        )
        for first, count in _parts(rows, columns, region.format)
    ]
    with np.errstate(all="ignore"):
        return np.float32(recipe.tensor(np.max(np.concatenate(peaks), keepdims=True))[0])


def _dequantized(given: TensorFile, made: PartFile, region: StoredTensor, note: str, wide: Format) -> None:
    """Write the values of one quantized tensor, a part at a time."""
    name, _, by = note.partition(" ")
    row = block_format(name)
    recipe = recipe_named(by, row) if by else None
    scales = given.regions[region.key + SCALES]._replace(format=row.scale)
    rows, columns = given.rows(region)
    kept = None
    if row.two_levels:
        kept = decode(given.codes(given.regions[region.key + TENSOR_SCALE], 0, 1), F32, np.float32)[0, 0]
    for first, count in _parts(rows, columns, F32):
        codes = given.codes(region._replace(format=row.element), first, count)
        found = Blocks(codes, given.codes(scales, first, count), row, recipe, kept)
        made.write(region.key, wide, first * columns, round_bits(found.dequantize(np.float64), wide))


def _require_parts(given: TensorFile, meant: Mapping[str, str]) -> None:
    """Raise `Kind.UNREADABLE` for notes without format or recipe, and for tensors that cannot be parts of blocks."""
    try:
        _check_parts(given, meant)
    except RefsimError as error:
        error.where, error.kind = given.reader.where, Kind.UNREADABLE
        raise


def _check_parts(given: TensorFile, meant: Mapping[str, str]) -> None:
    """Raise where a note names no format or recipe, a part is missing, or its type or shape does not fit."""
    for key, note in meant.items():
        name, _, by = note.partition(" ")
        row = block_format(name)
        recipe_named(by or None, row)
        wanted = [key, key + SCALES, *([key + TENSOR_SCALE] if row.two_levels else [])]
        missing = [each for each in wanted if each not in given.regions]
        if missing:
            raise RefsimError("unknown-key", f"no tensor is called {missing[0]!r}", rule=f"{BLOCKS_NOTE}{key}: {note}")
        for part, widths, count in (
            (key, (row.element.bits, BYTE), None),
            (key + SCALES, (BYTE,), None),
            (key + TENSOR_SCALE, (F32.bits,), 1),
        ):
            region = given.regions.get(part)
            if region is None or part not in wanted:
                continue
            if BITS[region.dtype] not in widths or (count is not None and prod(region.shape) != count):
                what = f"{part!r} is {region.dtype} of shape {region.shape}"
                rule = f"{row}: {row.element} elements, a byte for each scale, one float32 for the tensor"
                raise RefsimError("bad-dtype", what, rule=rule)
        shape, scales = given.regions[key].shape, given.regions[key + SCALES].shape
        if scales != (*shape[:-1], shape[-1] // row.width) or shape[-1] % row.width:
            what = f"{key!r} has shape {shape}, its scales {scales}"
            raise RefsimError("bad-shape", what, rule=f"{row.width} of K share one")


def _copied(given: TensorFile, made: PartFile, region: StoredTensor, note: str, wide: Format) -> None:
    _copy(given, made, region)


def _copy(given: TensorFile, made: PartFile, region: StoredTensor) -> None:
    size = region.end - region.begin
    for offset in range(0, size, PIECE_BYTES):
        made.write_bytes(region.key, offset, given.take(region, offset, min(PIECE_BYTES, size - offset)))


def _counted(report: Report, given: TensorFile) -> Report:
    """Return a `report` that receives the bytes read so far and in all, over the whole file."""
    total = sum(region.end - region.begin for region in given.regions.values())
    passed = 0

    def tell(key: str, size: int, _: int) -> None:
        nonlocal passed
        passed += size
        report(key, passed, total)

    return tell


def _told(given: TensorFile, plan: Mapping[str, Planned], key: str, why: str, done: str) -> FileTensor:
    """Return the outcome for one tensor, with the bytes before and after, scales included."""
    beside = [key, key + SCALES, key + TENSOR_SCALE]
    whole = done == "quantized" and not why
    after = sum(plan[each].size_bytes for each in (beside if whole else beside[:1]) if each in plan)
    before = sum(
        given.regions[each].end - given.regions[each].begin
        for each in (beside if done == "dequantized" and not why else beside[:1])
        if each in given.regions
    )
    return FileTensor(key, given.regions[key].shape, "copied" if why else done, why, before, after)
