"""Weights of files quantized, and values of quantized weights written, a part at a time: any file fits the memory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, cast
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from refsim.checkpoints.gguf_blocks import DECODERS
from refsim.checkpoints.layouts import CHECKPOINT_LAYOUTS, CheckpointLayout
from refsim.checkpoints.reading import ALIGNED_ROWS, BLOCKS_NOTE, TENSOR_SCALE, Weight, weights_of
from refsim.checkpoints.reading import OWN_SCALES as SCALES
from refsim.conversions import pack, round_bits
from refsim.errors import RefsimError, unknown
from refsim.files import npy
from refsim.files.access import require_free, unreadable, write_atomically
from refsim.files.npz import require_key
from refsim.files.parts import PIECE_BYTES, PartFile, Planned, TensorFile, planned, source, target
from refsim.files.safetensors import BITS, DTYPE_OF, FORMAT_KEY, PLAIN_TYPES, StoredTensor
from refsim.formats import F32, Format
from refsim.scaling.block_formats import BLOCK_FORMATS, BlockFormat, block_format
from refsim.scaling.block_pass import WideBlocks, largest_of_tensor
from refsim.scaling.blocks import quantize
from refsim.scaling.nvfp4_recipes import Nvfp4Recipe
from refsim.scaling.quantizing import quantize as quantize_groups
from refsim.scaling.recipes import Recipe, recipe_named
from refsim.scaling.rows import NAN_RULES
from refsim.scaling.wide import WIDE_FORMATS, one_of

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
    format: str | BlockFormat | CheckpointLayout,
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

    `format` may be a layout of public checkpoints (modelopt-nvfp4, deepseek-fp8, ...): weights are then named, typed
    and packed as in that layout, quantized by its library's recipe, or by DeepGEMM's for FP8 with float32 scales.
    """
    row = _made(format, recipe)
    require_free(to, overwrite=overwrite)
    with source(path) as given:
        why = {key: row.reason(region, keys) for key, region in given.regions.items()}
        _require_meant(given, why, keys, row)
        plan, notes = _plan_of_quantized(given, why, row)
        report = _counted(report, given)
        with target(to, plan, notes, given, overwrite=overwrite) as made:
            for key, region in given.regions.items():
                if key not in made.done:
                    if why[key]:
                        _copy(given, made, region)
                        made.finish(key)
                    else:
                        made.finish(key, *row.write(given, made, region))
                report(key, region.end - region.begin, 0)
        return [_told(given, plan, row.keys(key), key, why[key]) for key in given.regions]


def dequantize_file(
    path: Path,
    to: Path,
    format: str | Format = F32,
    *,
    layout: str | None = None,
    keys: tuple[str, ...] = (),
    overwrite: bool = False,
    report: Report = lambda key, done, planned: None,
) -> list[FileTensor]:
    """Write the values of a checkpoint's quantized weights in bf16, f16 or f32, each rounded once.

    `path` is a safetensors or GGUF file, a folder of them, or an index.json. `to` is .safetensors, .npz, or .npy for
    one weight. Other tensors are copied, unless `keys` (patterns of the names of weights) are given. `layout` overrides
    what names and types tell. Returns one outcome for each tensor, whose `why` names the layout. A call after an interrupted
    call resumes it. Raises RefsimError: `nothing-to-do`, `ambiguous-name`, `bad-shape`, and as `files.load` does.
    """
    wide = one_of(format, WIDE_FORMATS, "to")
    require_free(to, overwrite=overwrite)
    with source(path) as given:
        weights = _wanted(given, layout, keys)
        spent = {each.key for weight in weights.values() for each in (weight.codes, *weight.parts.values())}
        only = bool(keys) or to.suffix == ".npy"
        if to.suffix == ".npy" and len(weights) > 1:
            rule = f"weights: {', '.join(list(weights)[:4])}"
            raise RefsimError("key-needed", "an .npy file holds one tensor", where=str(to), rule=rule, help="FILE:KEY")
        kept = {key: region for key, region in given.regions.items() if key not in spent and not only}
        _require_storable(given, kept)
        plan, notes = _plan_of_values(given, weights, kept, wide)
        report = _counted(report, given)
        place = to if to.suffix == ".safetensors" else to.with_name(to.name + ".values")
        for key in plan if to.suffix == ".npz" else ():
            require_key(key)
        with target(place, plan, notes, given, overwrite=overwrite or place != to) as made:
            for key in plan:
                if key not in made.done:
                    if key in weights:
                        _dequantized(made, weights[key], wide)
                    else:
                        _copy(given, made, given.regions[key])
                    made.finish(key)
                region = weights[key].codes if key in weights else given.regions[key]
                report(key, region.end - region.begin, 0)
        if place != to:
            _as_arrays(place, to, plan)
        return [_outcome(given, plan, key, weights.get(key)) for key in plan]


def _wanted(given: TensorFile, layout: str | None, keys: tuple[str, ...]) -> dict[str, Weight]:
    """Return the weights that are asked for. Raises RefsimError where there are none."""
    found = weights_of(given, layout)
    for pattern in keys:
        if not any(fnmatchcase(key, pattern) for key in found):
            help = f"weights: {', '.join(list(found)[:4])}" if found else "refsim files lists the tensors"
            raise RefsimError("unknown-key", f"no weight is called {pattern[:80]!r}", where=str(given.path), help=help)
    wanted = {key: each for key, each in found.items() if not keys or any(fnmatchcase(key, one) for one in keys)}
    if not wanted:
        rule = "names, types and shapes of tensors tell a layout; refsim files lists them"
        raise RefsimError("nothing-to-do", "no tensor is a quantized weight", where=str(given.path), rule=rule)
    return wanted


def _require_storable(given: TensorFile, kept: Mapping[str, StoredTensor]) -> None:
    """Raise for tensors that can neither be dequantized nor copied."""
    for key, region in kept.items():
        if region.dtype not in BITS:
            rule = f"read: {', '.join(DECODERS)}; others are copied where safetensors has their type"
            what, way = f"tensor {key[:80]!r} is {region.dtype}", "--key PATTERN takes other weights alone"
            raise unreadable("unsupported-dtype", what, str(given.path), rule=rule, help=way)


def _as_arrays(place: Path, to: Path, plan: Mapping[str, Planned]) -> None:
    """Write the tensors of a finished safetensors file as arrays of NumPy, and remove the file."""

    def write(stream: BinaryIO) -> None:
        with source(place) as made:
            if to.suffix == ".npy":
                _write_array(stream, made, made.regions[next(iter(plan))])
                return
            with ZipFile(stream, "w", ZIP_STORED) as archive:
                for key in plan:
                    with archive.open(ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                        _write_array(cast(BinaryIO, member), made, made.regions[key])

    write_atomically(to, write, overwrite=True)
    place.unlink()


def _write_array(stream: BinaryIO, made: TensorFile, region: StoredTensor) -> None:
    """Write one tensor as .npy: codes as refsim.files.save does, integers and float64 as NumPy does."""
    size = region.end - region.begin
    if region.format is not None and BITS[region.dtype] < BYTE:
        npy.write(stream, made.codes(region, 0, region.rows[0]).reshape(region.shape), region.format)
        return
    kind = region.format.code_dtype.newbyteorder("<") if region.format else np.dtype(PLAIN_TYPES[region.dtype])
    empty = np.broadcast_to(np.zeros((), kind), region.shape)
    if region.format is not None:
        npy.write_header(stream, empty, region.format)
    else:
        np.lib.format.write_array_header_1_0(stream, {"descr": kind.str, "fortran_order": False, "shape": region.shape})
    for offset in range(0, size, PIECE_BYTES):
        stream.write(made.take(region, offset, min(PIECE_BYTES, size - offset)))


@dataclass(frozen=True)
class _Made:
    """How weights are quantized and stored: in blocks by a recipe, or in groups of (rows, columns), 0 for all."""

    layout: CheckpointLayout
    blocks: BlockFormat | None
    recipe: Recipe | None
    group: tuple[int, int] = (1, 1)

    def keys(self, key: str) -> dict[str, str]:
        """Return the key of each part of a weight."""
        if self.layout is CHECKPOINT_LAYOUTS[0]:
            factor = {"factor": key + TENSOR_SCALE} if self.blocks and self.blocks.two_levels else {}
            return {"codes": key, "scales": key + SCALES, **factor}
        base = key.removesuffix(self.layout.becomes)
        ends = {role: each.ends[0] for role, each in self.layout.parts.items() if role in ("scales", "factor")}
        return {"codes": base + self.layout.codes.ends[0], **{role: base + end for role, end in ends.items()}}

    def reason(self, region: StoredTensor, keys: tuple[str, ...]) -> str:
        """Return why a tensor is copied, or an empty string where it is quantized."""
        if keys and not any(fnmatchcase(region.key, each) for each in keys):
            return "not asked for"
        if region.format not in WIDE_FORMATS:
            return f"holds {region.format or region.dtype}"
        if len(region.shape) < 2 or 0 in region.shape or (self.blocks is None and len(region.shape) > 2):
            return "no matrix"
        if not region.key.endswith(self.layout.becomes):
            return f"its name does not end in {self.layout.becomes}"
        width = 1 if self.blocks is None else self.blocks.width
        return "" if region.shape[-1] % width == 0 else f"K is not a multiple of {width}"

    def plan(self, plan: dict[str, Planned], notes: dict[str, str], region: StoredTensor) -> None:
        """Add the parts of one weight to the plan."""
        keys, shape, blocks = self.keys(region.key), region.shape, self.blocks
        if self.layout is CHECKPOINT_LAYOUTS[0] and blocks:
            notes[BLOCKS_NOTE + region.key] = f"{blocks} {self.recipe}"
            _add(plan, notes, keys["codes"], blocks.element, shape)
            _add(plan, notes, keys["scales"], blocks.scale, (*shape[:-1], shape[-1] // blocks.width))
            if blocks.two_levels:
                _add(plan, notes, keys["factor"], F32, (1,))
            return
        layout, element = self.layout, self.layout.element
        assert element is not None
        packed = (*shape[:-1], shape[-1] * (element.bits if layout.packing == "low" else BYTE) // BYTE)
        if layout.name == "gpt-oss":
            packed = (*shape[:-1], shape[-1] // 32, 16)
        grid = tuple(-(-size // of) for size, of in zip(shape[-2:], self._group(region), strict=True))
        plan[keys["codes"]] = Planned(layout.codes.dtypes[0], packed)
        plan[keys["scales"]] = Planned(
            layout.parts["scales"].dtypes[0], () if layout.scaling == "tensor" else (*shape[:-2], *grid)
        )
        if "factor" in keys:
            plan[keys["factor"]] = Planned("F32", (1,) if layout.divides else ())

    def _group(self, region: StoredTensor) -> tuple[int, int]:
        rows, columns = region.shape[-2:]
        return (1, self.blocks.width) if self.blocks else (self.group[0] or rows, self.group[1] or columns)

    def write(self, given: TensorFile, made: PartFile, region: StoredTensor) -> list[str]:
        """Write the parts of one weight and return their keys."""
        assert region.format is not None
        keys, (rows, columns), (height, width) = self.keys(region.key), region.rows, self._group(region)
        kept = None if self.blocks is None or not self.blocks.two_levels else _kept(given, region, self.recipe)
        whole = self.blocks is None and height == rows and rows > 1
        for first, count in [(0, rows)] if whole else _parts(rows, columns, region.format):
            part = given.codes(region, first, count)
            at = first // height * -(-columns // width)
            if self.blocks is None:
                kind: Any = "e8m0" if made.tensors[keys["scales"]].dtype == "F8_E8M0" else "f32"
                by_groups = quantize_groups(part, region.format, group=(height, width), scale=kind)
                codes, scales, element = by_groups.codes, by_groups.scales, by_groups.format
                scale = by_groups.kind.format
            else:
                found = quantize(part, self.blocks, recipe=self.recipe, tensor_scale=kept, input_format=region.format)
                codes, scales, element, scale = found.codes, found.scales, self.blocks.element, self.blocks.scale
            if element.bits < BYTE and self.layout is not CHECKPOINT_LAYOUTS[0]:
                made.write_bytes(keys["codes"], first * columns * element.bits // BYTE, pack(codes, element).data)
            else:
                made.write(keys["codes"], element, first * columns, codes)
            made.write(keys["scales"], scale, at, scales)
        if kept is not None:
            made.write(keys["factor"], F32, 0, self._factor(np.array([kept], np.float32)).view(np.uint32))
        return list(keys.values())

    def _factor(self, kept: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the factor of a tensor as the layout stores it: kept by the recipe, a factor, or a divisor."""
        if self.layout is CHECKPOINT_LAYOUTS[0] or not isinstance(self.recipe, Nvfp4Recipe):
            return kept
        with np.errstate(all="ignore"):
            factor = np.asarray(self.recipe.factor(kept), np.float32)
            if not self.layout.divides:
                return factor
            return np.where(np.float32(1) / kept == factor, kept, np.float32(1) / factor)


def made_names() -> list[str]:
    """Return the names that `quantize_file` takes: block formats, then layouts of public checkpoints."""
    return [*(row.name for row in BLOCK_FORMATS), *(row.name for row in CHECKPOINT_LAYOUTS if row.made)]


def _block_named(name: str) -> BlockFormat:
    try:
        return block_format(name)
    except RefsimError as error:
        raise unknown("block format", name, made_names()) from error


def _made(format: str | BlockFormat | CheckpointLayout, recipe: str | Recipe | None) -> _Made:
    """Return how weights become a block format or a layout. Raises RefsimError for a layout that is only read."""
    layout = next((row for row in CHECKPOINT_LAYOUTS[1:] if format is row or str(format).lower() == row.name), None)
    if layout is None:
        row = format if isinstance(format, BlockFormat) else _block_named(str(format))
        return _Made(CHECKPOINT_LAYOUTS[0], row, recipe_named(recipe, row))
    if not layout.made:
        known = ", ".join(row.name for row in CHECKPOINT_LAYOUTS if row.made)
        raise RefsimError("unsupported-format", f"layout {layout} is only read", rule=f"written: {known}")
    first, _, usual = layout.made.partition(" ")
    if not first[0].isdigit():
        row = block_format(first)
        return _Made(layout, row, recipe_named(recipe or usual or None, row))
    if recipe is not None:
        what = f"recipe {recipe} is not for layout {layout}"
        raise RefsimError("unsupported-format", what, rule="scales are amax / 448")
    down, _, across = first.partition("x")
    return _Made(layout, None, None, (int(down), int(across)))


def _require_meant(given: TensorFile, why: Mapping[str, str], keys: tuple[str, ...], row: _Made) -> None:
    """Raise where a pattern of `keys` matches no tensor or one that does not fit, or no tensor can be quantized."""
    for pattern in keys:
        found = [key for key in given.regions if fnmatchcase(key, pattern)]
        if not found:
            raise RefsimError("unknown-key", f"no tensor is called {pattern!r}", where=str(given.path))
        for key in found:
            if why[key]:
                what = f"tensor {key!r} of shape {given.regions[key].shape}: {why[key]}"
                raise RefsimError("bad-shape", what, where=str(row.blocks or row.layout))
    if all(why.values()):
        of = f" with K a multiple of {row.blocks.width}" if row.blocks else ""
        named = f", called *{row.layout.becomes}" if row.layout.becomes else ""
        what = f"no tensor is a matrix of bf16, f16 or f32{of}{named}"
        raise RefsimError("nothing-to-do", what, where=str(given.path))


def _plan_of_quantized(
    given: TensorFile, why: Mapping[str, str], row: _Made
) -> tuple[dict[str, Planned], dict[str, str]]:
    """Return dtype and shape of every tensor of the quantized file, by key, and the file's metadata."""
    plan: dict[str, Planned] = {}
    notes = _notes(given, [key for key in given.regions if why[key]])
    for key, region in given.regions.items():
        if why[key]:
            plan[key] = Planned(region.dtype, region.shape)
            continue
        row.plan(plan, notes, region)
        taken = [each for each in row.keys(key).values() if each != key and each in given.regions]
        if taken:
            raise RefsimError("name-taken", f"the file has a tensor called {taken[0]!r}", where=str(given.path))
    return plan, notes


def _plan_of_values(
    given: TensorFile, weights: Mapping[str, Weight], kept: Mapping[str, StoredTensor], wide: Format
) -> tuple[dict[str, Planned], dict[str, str]]:
    """Return dtype and shape of every tensor of the dequantized file, by key, and the file's metadata."""
    notes = {key: text for key, text in _notes(given, list(kept)).items() if not key.startswith(BLOCKS_NOTE)}
    plan = {key: Planned(region.dtype, region.shape) for key, region in kept.items()}
    for key, weight in weights.items():
        _add(plan, notes, key, wide, weight.shape)
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
    """Yield (first row, rows) of parts of about 16 MiB, in multiples of 128 rows."""
    step = max(1, PIECE_BYTES // max(1, columns * format.code_dtype.itemsize) // ALIGNED_ROWS) * ALIGNED_ROWS
    for first in range(0, rows, step):
        yield first, min(step, rows - first)


def _kept(given: TensorFile, region: StoredTensor, recipe: Any) -> np.float32:
    """Return a recipe's value for a whole tensor; a first pass over it finds the largest magnitude."""
    assert region.format is not None
    rows, columns = region.rows
    peaks = [
        largest_of_tensor(
            WideBlocks(given.codes(region, first, count), region.format), ignores_nan=recipe.nan == NAN_RULES[1]
        )
        for first, count in _parts(rows, columns, region.format)
    ]
    with np.errstate(all="ignore"):
        return np.float32(recipe.tensor(np.max(np.concatenate(peaks), keepdims=True))[0])


def _dequantized(made: PartFile, weight: Weight, wide: Format) -> None:
    """Write the values of one quantized tensor, a part at a time."""
    rows, columns = weight.rows
    for first, count in _parts(rows, columns, F32):
        values = weight.values(first, count)
        made.write(weight.key, wide, first * columns, round_bits(values, wide))


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


def _told(given: TensorFile, plan: Mapping[str, Planned], keys: Mapping[str, str], key: str, why: str) -> FileTensor:
    """Return the outcome for one tensor of `quantize_file`, with the bytes before and after, scales included."""
    region = given.regions[key]
    after = sum(plan[each].size_bytes for each in ([key] if why else keys.values()))
    return FileTensor(key, region.shape, "copied" if why else "quantized", why, region.end - region.begin, after)


def _outcome(given: TensorFile, plan: Mapping[str, Planned], key: str, weight: Weight | None) -> FileTensor:
    """Return the outcome for one tensor of `dequantize_file`."""
    held = [given.regions[key]] if weight is None else [weight.codes, *weight.parts.values()]
    before, done = sum(each.end - each.begin for each in held), "copied" if weight is None else "dequantized"
    why = "no quantized weight" if weight is None else f"{weight.layout}: {weight.why}"
    return FileTensor(key, plan[key].shape, done, why, before, plan[key].size_bytes)
