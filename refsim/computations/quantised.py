"""The outputs of a quantizer of a known tensor: codes, scales or both, with causes in every step of every rule."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.amax_changes import INFINITE_MAGNITUDE, MAGNITUDE_MASK
from refsim.computations.element_changes import CONVERTED, code_placings, conversions_of
from refsim.computations.engine import PLACED, Aspect, Computation
from refsim.computations.in_part import part_of
from refsim.computations.placing import IN_PLACE, Placing
from refsim.computations.quantiser_changes import STEPS_OF_QUANTISERS, limit_causes
from refsim.computations.quantising import QuantizingRule, ScaleGrid, Singles
from refsim.computations.scale_stores import AS_WRITTEN, BY_ROWS, NOT_WRITTEN, ScaleStore, store_causes
from refsim.computations.ways import Cause, Choices, Codes, DoesNotApplyError, Family, FlatSample, lines_chosen
from refsim.formats import F32, Format
from refsim.scaling.grids import Pair, scale_grid
from refsim.sources import PTX

TILES = (512, 256, 128, 64, 32, 16, 8, 4)
Marks = NDArray[np.bool_]


@dataclass(frozen=True)
class Reach:
    """Elements below `rows` and `columns` are written (-1: all of them); the others hold what memory held before.

    `is_packed`: scales lie as if the tensor ended there. `has_codes` False: codes are all written, later scales hold 0.
    """

    name: str
    rows: int = -1
    columns: int = -1
    is_packed: bool = False
    has_codes: bool = True

    def of(self, shape: Pair) -> Pair:
        """Return the rows and columns of a matrix of `shape` that are written."""
        return (shape[0] if self.rows < 0 else self.rows, shape[1] if self.columns < 0 else self.columns)

    def beyond_in_codes(self, shape: Pair) -> Marks:
        """Return a mask of the codes that are uninitialized."""
        marks = np.zeros(shape, bool)
        if self.has_codes:
            rows, columns = self.of(shape)
            marks[rows:], marks[:, columns:] = True, True
        return marks

    def grid_of(self, shape: Pair, group: Pair) -> Pair:
        """Return rows and blocks of the scales that are written; without codes, a cut block has no scale."""
        rows, columns = self.of(shape)
        return -(-rows // group[0]), -(-columns // group[1])

    def beyond_in_scales(self, store: ScaleStore, grid: Pair, reached: Pair, size: int) -> Marks:
        """Return a mask of the buffer's scales that are uninitialized, or that hold 0 for a cut block."""
        if self.is_packed:
            _, written = store.places(reached) if min(reached) else (None, 0)
            return np.arange(size) >= written
        places, _ = store.places(grid if not self.has_codes else store.padded(grid))
        if int(places.max(initial=0)) >= size:
            raise DoesNotApplyError
        marks = np.ones(size, bool)
        rows, blocks = store.padded(reached) if self.has_codes else reached
        marks[places[:rows, :blocks].reshape(-1)] = False
        if not self.has_codes:
            beyond = np.zeros(size, bool)
            beyond[places.reshape(-1)] = True
            marks &= beyond
        return marks


EVERYTHING = Reach("all rows and columns are reached")


def reaches(shape: Pair, group: Pair, has_codes: bool) -> Iterator[Reach]:
    """Yield every reach of a matrix, the full one first; without codes, only reaches that miss scales."""
    yield EVERYTHING
    rows, columns = shape
    whole = columns // group[1] * group[1]
    if 0 < whole < columns:
        says = (
            f"the block that the end of a row cuts has no scale: {columns} columns are {whole // group[1]} whole blocks"
        )
        yield Reach(says, columns=whole, has_codes=False)
    if not has_codes:
        return
    for axis, extent, what in ((0, rows, "rows"), (1, columns, "columns")):
        for end in dict.fromkeys((extent - 1) // tile * tile for tile in TILES):
            if not end:
                continue
            says = f"the last {extent - end} {what} are not reached: their codes and scales are uninitialized"
            yield Reach(says, columns=end) if axis else Reach(says, rows=end)
            if axis:
                yield Reach(f"{says}, and scales lie as if there were {end} columns", columns=end, is_packed=True)
    if columns < group[1] or rows < TILES[0]:
        yield Reach("nothing is reached: everything is uninitialized", 0, 0, is_packed=True)


def reach_causes(own: "QuantizedTensor") -> Iterator[Cause]:
    """Yield the causes in how far a quantizer gets: aspect `reach`."""
    both = own.which == QuantizerOutput.BOTH
    for reach in reaches((own.x.shape[0], own.columns), own.rules[0].group, both):
        rank = int(reach is not EVERYTHING)
        yield Cause(Family.TAIL, reach.name, "reach", reach, PTX["st: guarded by a bound"], rank)


def blanked(codes: Codes, marks: Marks) -> Codes:
    """Return an output with zeros where it is uninitialized. Raises DoesNotApplyError for several codes there.

    Two codes that alternate by columns count as one, since they make one byte of 4-bit codes.
    """
    if any(np.unique(codes[..., k::2][marks[..., k::2]]).size > 1 for k in (0, 1)):
        raise DoesNotApplyError
    return np.where(marks, codes.dtype.type(0), codes)


def is_one_byte(codes: Codes, scales: Codes, code_bits: int) -> bool:
    """Return whether codes and scales repeat one byte, as memory does that was filled before the run."""
    first = [int(each) for each in codes.reshape(-1)[:2]]
    byte = first[0] if code_bits == 8 else first[0] | first[-1] << 4
    return int(scales.reshape(-1)[0]) in (byte, byte * 0x01010101)


LARGE = 1 << 14
"""From this many elements on, a few rows refute a plan."""


OF_SCALES = "rule limit read peak bound tensor keeping"
"""The aspects on which the grid of scales depends."""
OF_ELEMENTS = ("read", "keeping", "used", "quotient", "element")
"""Steps done for each element, which a kernel may do differently in some columns of a block."""


class QuantizerOutput(StrEnum):
    """The outputs of a quantizer that are compared."""

    CODES = "codes"
    SCALES = "scales"
    BOTH = "codes and scales"


def grid_of(shape: tuple[int, ...], group: Pair) -> Pair:
    """Return rows and columns of the grid of a tensor's scales."""
    return scale_grid((shape[-2], shape[-1]), group)


def _rules(own: "QuantizedTensor") -> Iterator[Cause]:
    """Yield the causes in the rule of a library, or in one setting of the usual rule: aspect `rule`."""
    for rule in own.rules:
        yield Cause(Family.SCALE_RULE, f"the rule {rule.name}", "rule", rule, rule.source, families=_family_of_rules)
    yield from own.variants


def _has_codes(own: "QuantizedTensor", way: Any) -> bool:
    return own.which != QuantizerOutput.SCALES


def _has_grid(own: "QuantizedTensor", way: Any) -> bool:
    """Return whether the scales of one matrix are compared."""
    return own.which != QuantizerOutput.CODES and own.x.ndim == 2


def _moves_scales(own: "QuantizedTensor", way: Placing) -> bool:
    """Return whether a placing is no place of the store of scales."""
    is_alone = own.which == QuantizerOutput.SCALES and own.store is BY_ROWS
    return is_alone and (way.family is not Family.TRANSPOSED or way is IN_PLACE)


@dataclass(frozen=True, eq=False)
class QuantizedTensor(Computation):
    """The outputs `which` of a quantized tensor x (..., rows, columns).

    Codes, scales in a buffer of `shape`, or both concatenated. `columns` excludes the zeros that complete a block of x.
    The first of `rules` is the usual one; its scales map amax to the largest value of `limit`, and lie as in `store`.
    `x_of_amax`: the values whose amax is taken, where these are not x.
    """

    x: Singles
    x_format: Format
    rules: tuple[QuantizingRule, ...]
    which: QuantizerOutput
    shape: tuple[int, ...]
    format: Format
    limit: Format
    store: ScaleStore
    scales_size: int = 0
    columns: int = 0
    variants: tuple[Cause, ...] = ()
    x_of_amax: Singles | None = None
    names: tuple[str, str] = ("q", "scales")

    title = "quantised by "
    is_sampled = False
    remembers = 1 << 20
    aspects = (
        Aspect("rule", _rules, lambda own: own.rules[0], told="the rule {}"),
        *STEPS_OF_QUANTISERS,
        Aspect("limit", lambda own: limit_causes(own.rules[0].element.to), lambda own: own.limit),
        Aspect("element", lambda own: conversions_of(own.rules[0].element.to), CONVERTED, when=_has_codes),
        replace(PLACED, ways=lambda own: code_placings(own.rules[0].element.to), usual=IN_PLACE, when=_has_codes),
        Aspect(
            "stored",
            lambda own: store_causes(own.store, own.grid, own.scales_size) if _has_grid(own, None) else (),
            lambda own: own.store,
        ),
        Aspect("pads", usual=AS_WRITTEN),
        Aspect("reach", reach_causes, EVERYTHING, when=_has_grid),
        replace(PLACED, ways=code_placings(F32), when=_moves_scales),
    )

    @property
    def grid(self) -> Pair:
        """Return rows and columns of the usual grid of scales."""
        return grid_of(self.x.shape, self.rules[0].group)

    def codes(self, plan: Choices, sample: FlatSample | None = None) -> Codes:
        """Return codes, scales, or both. Raises DoesNotApplyError for steps that this tensor or rule lacks.

        With a sample: the codes of some rows, and all scales.
        """
        if sample is not None and plan.placed is not IN_PLACE:
            return self.codes(plan).reshape(-1)[sample.at]
        rows = None if sample is None else sample.rows
        with np.errstate(all="ignore"):
            grid, used = self._grids(plan)
            if self.which == QuantizerOutput.SCALES:
                return self.moved(plan, self._in_buffer(plan, grid.stored)).reshape(self.shape)
            codes = self.moved(plan, self._elements(plan, used, rows)[..., : self.columns])
            if plan.reach is not EVERYTHING:
                beyond = plan.reach.beyond_in_codes(self._extents())
                codes = np.where(beyond if rows is None else beyond[rows], codes.dtype.type(0), codes)
            if self.which == QuantizerOutput.CODES:
                return codes if rows is None else codes.reshape(-1)
            words = [each.reshape(-1).astype(np.uint32) for each in (codes, self._in_buffer(plan, grid.stored))]
            return np.concatenate(words)

    def few_rows(self, wrong: NDArray[np.bool_], most: int) -> FlatSample | None:
        """Return rows where most codes differ, some others, and all scales; None for small tensors or scales alone."""
        if self.which == QuantizerOutput.SCALES or self.x.size < LARGE or self.x.ndim > 2:
            return None
        size = self.x.shape[0] * self.columns
        places = np.arange(size).reshape(self._extents())
        rows = lines_chosen(wrong.reshape(-1)[:size].reshape(places.shape).sum(axis=1), most)
        return FlatSample(rows, np.concatenate([places[rows].reshape(-1), np.arange(size, wrong.size)]))

    def is_refuted(self, plan: Choices, got: Codes) -> bool:
        """Return whether the scales, of which there are few, already differ from `got`; codes are skipped."""
        if self.which != QuantizerOutput.BOTH:
            return False

        def made() -> tuple[Codes, bool]:
            with np.errstate(all="ignore"):
                scales = self._in_buffer(plan, self._grids(plan)[0].stored).reshape(-1)
            return got, bool((scales != got[-self.scales_size :]).any())  # holding `got` keeps its id unique

        return bool(self.once(("refuted", id(got)), plan, f"{OF_SCALES} stored reach", made)[1])

    def part(self, cause: Cause, made: Codes, got: Codes, want: Codes) -> str | None:
        """Return where codes equal `made` while they equal `want` elsewhere, as text; None where nowhere.

        The scales that accompany them must all match one of the two.
        """
        if self.x.ndim > 2 or self.which == QuantizerOutput.SCALES:
            return None
        size = self.x.shape[0] * self.columns
        first, behind = zip(*(np.split(each.reshape(-1), [size]) for each in (made, got, want)), strict=True)
        if not ((behind[0] == behind[1]).all() or (behind[2] == behind[1]).all()):
            return None
        made, got, want = (each.reshape(self._extents()) for each in first)
        return part_of(made, got, want, of_columns=cause.aspect in OF_ELEMENTS)

    def alone(self, which: QuantizerOutput) -> "QuantizedTensor":
        """Return the subject of this tensor for its codes alone or its scales alone."""
        grid = (*self.x.shape[:-2], *self.grid)
        size = self.scales_size or int(np.prod(grid))
        of_scales = grid if self.store is BY_ROWS else (size,)
        shape = (*self.x.shape[:-1], self.columns) if which == QuantizerOutput.CODES else of_scales
        return replace(self, which=which, shape=shape, scales_size=size)

    def apart(self, codes: Codes) -> dict[str, Codes]:
        """Return a kernel's outputs `names`: codes in their shape, scales row by row or as the buffer of a layout."""
        if self.which != QuantizerOutput.BOTH:
            return super().apart(codes)
        first, scales = np.split(codes, [codes.size - self.scales_size])
        held = first.astype(self.format.code_dtype).reshape(self._extents())
        scales = scales.astype(self.rules[0].stored_as.code_dtype)
        scales = scales.reshape(self.grid) if self.store is BY_ROWS and self.x.ndim == 2 else scales
        return dict(zip(self.names, (held, scales), strict=True))

    def together(self, arrays: Mapping[str, Codes]) -> Codes:
        """Return the outputs of a kernel in 32 bits, one after another."""
        if self.which != QuantizerOutput.BOTH:
            return super().together(arrays)
        return np.concatenate([np.ravel(arrays[name]).astype(np.uint32) for name in self.names])

    def beside(self, plan: Choices) -> str:
        """Return how the output that was not given would compare with the usual one, under a plan."""
        if self.which == QuantizerOutput.BOTH:
            return ""
        which = QuantizerOutput.SCALES if self.which == QuantizerOutput.CODES else QuantizerOutput.CODES
        other = self.alone(which)
        try:
            made, usual = (other.codes(each.but(placed=IN_PLACE)) for each in (plan, self.usual))
        except DoesNotApplyError:
            return ""
        count = int(np.count_nonzero(made != usual))
        return (
            f"the {which} would be the usual ones" if not count else f"{count} of {made.size} {which} would be others"
        )

    # ---- the steps ---------------------------------------------------------------------------------------------------

    def _grids(self, plan: Choices) -> tuple[ScaleGrid, ScaleGrid]:
        """Return the scales that are stored, and the scales that elements are divided by."""
        return self.once(("grids",), plan, OF_SCALES, lambda: self._made_grids(plan))  # type: ignore[no-any-return]

    def _made_grids(self, plan: Choices) -> tuple[ScaleGrid, ScaleGrid]:
        changed = ruled = self._ruled(plan)
        if plan.keeping.change is not None:
            stored = np.asarray(plan.keeping.change(ruled, plan.rule)).astype(ruled.stored.dtype)
            changed = replace(ruled, stored=stored)
        used, value = changed if plan.keeping.is_used else ruled, plan.keeping.value
        if value is not None:
            used = replace(used, value=value(ruled, plan.rule), is_unrounded=True)
        return changed if plan.keeping.is_stored else ruled, used

    def _ruled(self, plan: Choices) -> ScaleGrid:
        """Return the scales of the plan's rule."""
        rule = plan.rule
        peak = plan.bound.apply(self._peaks(plan), rule)
        kept = plan.tensor.apply(self._of_tensor(plan))
        stored, value = rule.chosen(self._read(plan), peak, kept) if rule.chosen else rule.scale(peak, kept, plan.limit)
        return ScaleGrid(peak, kept, stored, value, largest=plan.limit.max_value)

    def _read(self, plan: Choices) -> Singles:
        return self.once(("x",), plan, "read", lambda: np.asarray(plan.read.apply(self.x, self.x_format), np.float32))  # type: ignore[no-any-return]

    def _peaks(self, plan: Choices) -> Singles:
        def made() -> Singles:
            x = self._read(plan) if self.x_of_amax is None else self.x_of_amax
            patterns = np.ascontiguousarray(x).view(np.uint32)
            magnitudes = _magnitudes(patterns, plan.rule.counts_nan)
            return np.ascontiguousarray(plan.peak.apply(magnitudes, patterns, plan.rule.group)).view(np.float32)

        return self.once((plan.rule.counts_nan, plan.rule.group), plan, "read peak", made)  # type: ignore[no-any-return]

    def _of_tensor(self, plan: Choices) -> Singles:
        def made() -> Singles:
            patterns = np.ascontiguousarray(self._read(plan)).view(np.uint32)
            counts = plan.rule.counts_nan if plan.rule.tensor_counts_nan is None else plan.rule.tensor_counts_nan
            largest = _magnitudes(patterns, counts).max(initial=0)
            return plan.rule.tensor(np.array([largest], np.uint32).view(np.float32))  # type: ignore[no-any-return]

        return self.once(("tensor",), plan, "read rule", made)  # type: ignore[no-any-return]

    def _elements(self, plan: Choices, grid: ScaleGrid, rows: NDArray[Any] | None = None) -> Codes:
        """Return the codes of some rows, or of all; codes of equal scales are remembered."""
        steps = (plan.rule, plan.read, plan.used, plan.quotient, plan.element)
        had = self.made.get(("elements", *steps))
        if rows is None and had is not None and _is_same(had[0], grid):
            return np.asarray(had[1])
        x, (down, across) = self._read(plan), plan.rule.group
        shape = (grid.peak.shape[-2], grid.peak.shape[-1])
        row = np.arange(x.shape[-2]) if rows is None else rows
        places = plan.used.apply(row[:, None] // down, np.arange(x.shape[-1])[None, :] // across, shape)
        peak, stored, value = (each[(..., *places)] for each in (grid.peak, grid.stored, grid.value))
        spread = ScaleGrid(peak, grid.kept, stored, value, grid.is_unrounded, grid.largest)
        x = x if rows is None else x[rows]
        codes: Codes = plan.element.apply(plan.quotient.apply(x, spread, plan.rule), plan.rule.element)
        if rows is None and had is None:
            self.made[("elements", *steps)] = grid, codes
        return codes

    def _extents(self) -> Pair:
        return self.x.shape[-2], self.columns

    def _in_buffer(self, plan: Choices, scales: NDArray[Any]) -> Codes:
        """Return scales in their places in the output buffer."""
        codes = np.ascontiguousarray(scales).view(plan.rule.stored_as.code_dtype)
        if codes.ndim > 2:
            return codes  # type: ignore[no-any-return]
        if plan.reach is EVERYTHING:
            return plan.stored.put(codes, self.scales_size)  # type: ignore[no-any-return]
        group = plan.rule.group
        rows, blocks = plan.reach.grid_of(self._extents(), group)
        if plan.reach.is_packed:
            return plan.stored.put(codes[:rows, :blocks], self.scales_size)  # type: ignore[no-any-return]
        return np.where(self._beyond_in_scales(plan), codes.dtype.type(0), plan.stored.put(codes, self.scales_size))  # type: ignore[no-any-return]

    def _beyond_in_scales(self, plan: Choices) -> NDArray[np.bool_]:
        """Return a mask of the buffer's elements that a plan never writes."""
        grid, reach = grid_of(self.x.shape, plan.rule.group), plan.reach
        marks = np.zeros(self.scales_size, bool)
        if plan.stored.leaves:
            marks |= plan.stored.left(grid, self.scales_size)
        if reach is not EVERYTHING:
            reached = reach.grid_of(self._extents(), plan.rule.group)
            marks |= reach.beyond_in_scales(plan.stored, grid, reached, self.scales_size)
        return marks

    # ---- what the search asks for --------------------------------------------------------------------------------------

    def undone(self, plan: Choices, got: Codes) -> tuple[Choices, Codes]:
        """Return the plan without its placing, and `got` with its elements moved back."""
        if self.which == QuantizerOutput.CODES:
            return super().undone(plan, got)
        if self.which == QuantizerOutput.BOTH and plan.placed is not IN_PLACE:
            plan, got = plan.but(placed=IN_PLACE), self._placed_back(plan.placed, got)
        if plan.pads == NOT_WRITTEN:
            plan, got = plan.but(pads=AS_WRITTEN), self._with_pads(plan, got)
        if plan.stored.leaves or plan.reach is not EVERYTHING:
            got = self._with_what_is_left(plan, got)
        return plan, got

    def _placed_back(self, placed: Placing, got: Codes) -> Codes:
        """Return codes moved back into their places with unchanged scales; the result is remembered."""
        key = ("back", placed, id(got))
        if key not in self.made:
            size = got.size - self.scales_size
            codes = placed.back(got[:size].reshape(*self.x.shape[:-1], self.columns).astype(self.format.code_dtype))
            self.made[key] = got, np.concatenate([codes.reshape(-1).astype(got.dtype), got[size:]])
        return np.asarray(self.made[key][1])

    def _with_what_is_left(self, plan: Choices, got: Codes) -> Codes:
        """Return an output with zeros where a plan does not write. Raises DoesNotApplyError for several codes there."""
        flat = got.reshape(-1)
        first = flat.size - self.scales_size
        codes, scales = flat[:first], flat[first:]
        if plan.reach.of(self._extents()) == (0, 0) and not is_one_byte(codes, scales, self.format.code_bits):
            raise DoesNotApplyError
        if plan.reach.has_codes or plan.stored.leaves:
            scales = blanked(scales, self._beyond_in_scales(plan))
        if first:
            shape = self._extents()
            codes = blanked(codes.reshape(shape), plan.reach.beyond_in_codes(shape)).reshape(-1)
        return np.concatenate([codes, scales]).reshape(got.shape)

    def _with_pads(self, plan: Choices, got: Codes) -> Codes:
        """Return an output with zeros in the padding of its layout, which may hold anything."""
        places, _ = plan.stored.places(grid_of(self.x.shape, plan.rule.group))
        first = got.size - self.scales_size
        found = got.reshape(-1).copy()
        is_pad = np.ones(self.scales_size, bool)
        is_pad[places[places < self.scales_size]] = False
        found[first:][is_pad] = 0
        return found.reshape(got.shape)

    def another(self, seed: int, *, wide: bool = False) -> "QuantizedTensor":
        """Return a tensor of drawn values of many magnitudes, with blocks of subnormals and of zeros."""
        random = np.random.default_rng(seed)
        drawn = random.normal(0, 1, self.x.shape) * 2.0 ** random.integers(-130, 100, (*self.x.shape[:-1], 1))
        x = np.where(random.random(self.x.shape) < 0.05, 0, drawn).astype(np.float32)
        return replace(self, x=x, x_format=F32)


def _family_of_rules(had: QuantizingRule, chosen: QuantizingRule) -> str:
    """Return the family of a change of rules: NaN where the rules differ only in their treatment of NaN."""
    one, other = (rule.name.rpartition(", NaN ")[0] for rule in (had, chosen))
    return Family.NAN if one and one == other else Family.SCALE_RULE


def _is_same(one: ScaleGrid, other: ScaleGrid) -> bool:
    """Return whether two grids are equal in every bit."""
    pairs = ((getattr(one, name), getattr(other, name)) for name in ("peak", "kept", "stored", "value"))
    return one.is_unrounded == other.is_unrounded and all(a.tobytes() == b.tobytes() for a, b in pairs)


def _magnitudes(patterns: NDArray[np.uint32], counts_nan: bool) -> NDArray[np.uint32]:
    """Return patterns without signs, NaN as 0 unless it counts."""
    found = patterns & MAGNITUDE_MASK
    return found if counts_nan else np.where(found > INFINITE_MAGNITUDE, np.uint32(0), found)
