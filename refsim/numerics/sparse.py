"""Products whose A has zeros in a fixed proportion: the storage of A, and the profile that adds the stored products.

Some elements of each group of neighbors in a row of A are stored, with their positions in the group: the metadata. An
instruction multiplies the stored elements by the elements of B at these positions. It ignores the others, NaN included.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.errors import RefsimError, unknown
from refsim.evidence import Evidence, Level
from refsim.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, S8, S32, TF32, U8, ElementType, float_named
from refsim.integers import array_of
from refsim.numerics.calls import Arguments, Call, codes_and_format, fitted
from refsim.numerics.profiles import profile
from refsim.numerics.rows import Profile, Unit
from refsim.sources import PTX, Source
from refsim.targets import target_named
from refsim.typed_arrays import native

Codes = NDArray[Any]
Positions = NDArray[np.uint8]
_TILE = 1 << 22  # elements of B that are gathered at once
_SHAPES = "a (..., M, K / 2) codes, metadata (..., M, K / 2) positions, b (..., N, K) codes"


@dataclass(frozen=True)
class Sparsity:
    """Describe the storage of each `group` neighbors in a row: `kept` are stored, `together` of them side by side.

    The text is "2:4", or "4:8 in pairs".
    """

    kept: int
    group: int
    together: int = 1

    def __str__(self) -> str:
        return f"{self.kept}:{self.group}" + " in pairs" * (self.together == 2)


TWO_OF_FOUR, ONE_OF_TWO, PAIRS_OF_EIGHT = Sparsity(2, 4), Sparsity(1, 2), Sparsity(4, 8, 2)

INFERRED = Evidence(
    Level.UNVERIFIED,
    "sparse sums are inferred, not measured: the stored products, in their order, taken for those of the dense instruction of "
    "half the K",
)
MEASURED = Evidence(Level.SILICON, "942,080 results of an H200 in 60 forms, every bit equal")
_EXACT = Evidence(Level.FORMULA, "exact integers, by definition of the instruction")


@dataclass(frozen=True)
class SparseForm:
    """Describe the sparse instructions of a unit for some types of A and B.

    `k` counts elements of the whole A. `changes` are the fields of `Profile` that differ from the dense instruction of
    half this K.
    """

    unit: Unit
    types: tuple[ElementType, ...]
    results: tuple[ElementType, ...]
    k: tuple[int, ...]
    since: str
    source: Source
    sparsity: Sparsity = TWO_OF_FOUR
    evidence: Evidence = INFERRED
    changes: dict[str, Any] = field(default_factory=dict)

    def has(self, row: Profile) -> bool:
        """Return whether the chip of a dense profile has these instructions, with its result."""
        return target_named(row.target).number >= target_named(self.since).number and row.d_format in self.results

    def evidence_on(self, target: str) -> Evidence:
        """Return the evidence for these sums on a target: sm_90 was measured."""
        return MEASURED if self.evidence is INFERRED and target == "sm_90" else self.evidence


# `changes` hold measured differences: chunks that end at the chunk boundaries of the whole A would be {"length": 8}
# for f16 of mma.sync on sm_90.
# fmt: off
_WARP, _WARPGROUP, _BLOCK = PTX["mma.sp"], PTX["wgmma.mma_async.sp"], PTX["tcgen05.mma.sp"]
_NARROW = (E4M3, E5M2, E2M3, E3M2, E2M1)
SPARSE_FORMS = (
    # unit, types of A and B, types of D, k, since, source
    SparseForm("mma.sync", (F16,), (F32, F16), (32, 16), "sm_80", _WARP),
    SparseForm("mma.sync", (BF16,), (F32,), (32, 16), "sm_80", _WARP),
    SparseForm("mma.sync", (TF32,), (F32,), (16, 8), "sm_80", _WARP, ONE_OF_TWO),
    SparseForm("mma.sync", (S8, U8), (S32,), (64, 32), "sm_80", _WARP, evidence=_EXACT),
    SparseForm("mma.sync", (E4M3, E5M2), (F32,), (64,), "sm_89", _WARP),
    SparseForm("wgmma", (F16,), (F32, F16), (32,), "sm_90a", _WARPGROUP),
    SparseForm("wgmma", (BF16,), (F32,), (32,), "sm_90a", _WARPGROUP),
    SparseForm("wgmma", (TF32,), (F32,), (16,), "sm_90a", _WARPGROUP, ONE_OF_TWO),
    SparseForm("wgmma", (E4M3, E5M2), (F32, F16), (64,), "sm_90a", _WARPGROUP),
    SparseForm("wgmma", (S8, U8), (S32,), (64,), "sm_90a", _WARPGROUP, evidence=_EXACT),
    SparseForm("tcgen05.f16", (F16,), (F32, F16), (32,), "sm_100a", _BLOCK),
    SparseForm("tcgen05.f16", (BF16,), (F32,), (32,), "sm_100a", _BLOCK),
    SparseForm("tcgen05.tf32", (TF32,), (F32,), (16,), "sm_100a", _BLOCK, ONE_OF_TWO),
    SparseForm("tcgen05.f8f6f4", _NARROW, (F32, F16), (64,), "sm_100a", _BLOCK),
    SparseForm("tcgen05.i8", (S8, U8), (S32,), (64,), "sm_100a", _BLOCK, evidence=_EXACT),
    SparseForm("tcgen05.mxf8f6f4", _NARROW, (F32,), (64,), "sm_100a", _BLOCK),
    SparseForm("tcgen05.mxf4", (E2M1,), (F32,), (128,), "sm_100a", _BLOCK, PAIRS_OF_EIGHT),
    SparseForm("tcgen05.mxf4nvf4", (E2M1,), (F32,), (128,), "sm_100a", _BLOCK, PAIRS_OF_EIGHT),
)
# fmt: on


def sparsity_of(format: ElementType, unit: Unit | None = None) -> Sparsity:
    """Return the storage of a sparse A of a type: 1:2 for tf32, 2:4 for f16, bf16, FP8, s8 and u8.

    e2m1 is 4:8 in pairs where the unit has containers of 4 bits, 2:4 elsewhere.
    """
    form = next((form for form in SPARSE_FORMS if format in form.types and unit in (None, form.unit)), None)
    if form is None:
        known = dict.fromkeys(type.name for form in SPARSE_FORMS for type in form.types)
        raise unknown("type of a sparse matrix", format.name, list(known))
    return form.sparsity


def sparse_profile(
    target: str,
    unit: Unit,
    a_format: str | ElementType,
    b_format: str | ElementType,
    d_format: str | ElementType,
    k: int | None = None,
) -> Profile:
    """Return the profile that adds the stored products of a sparse instruction; its `k` and `length` count only these.

    `k` is the instruction's, elements of the whole A (None: the largest). Sums that were not measured are unverified.
    sparse_profile("sm_90a", "mma.sync", "f16", "f16", "f32", 32).k is (16, 8).
    Raises RefsimError for combinations that no instruction has. Source: the form's.
    """
    row = profile(target, unit, a_format, b_format, d_format, k // 2 if isinstance(k, int) and k % 2 == 0 else k)
    for form in SPARSE_FORMS:
        names = [type.name for type in form.types]
        if (form.unit, str(a_format) in names, str(b_format) in names) != (unit, True, True):
            continue
        sizes = tuple(size // 2 for size in form.k if size // 2 in row.k)
        if form.has(row) and sizes and (k is None or k // 2 in sizes):
            return replace(row, k=sizes, source=form.source, evidence=form.evidence_on(row.target), **form.changes)
    of_unit = [form for form in SPARSE_FORMS if form.unit == unit]
    known = "; ".join(f"{'|'.join(map(str, form.types))}, k {' or '.join(map(str, form.k))}" for form in of_unit)
    raise RefsimError(
        "unknown-arithmetic",
        f"{target} {unit} has no sparse product of {a_format} x {b_format} -> {d_format}"
        + (f" with k {k}" if k else ""),
        help=f"known: {known or 'mma.sync and wgmma'}",
    )


def sparse_rows(rows: Iterable[Profile]) -> Iterator[Profile]:
    """Yield the profiles of the sparse instructions of dense profiles, each with the K that the ISA counts."""
    done: set[tuple[object, ...]] = set()
    for row in rows:
        for form in SPARSE_FORMS:
            sizes = tuple(size for size in form.k if size // 2 in row.k)
            if form.unit == row.unit and form.types[0] in row.a_formats[:1] and sizes and form.has(row):
                if (key := (row.target, form.unit, form.types, row.d_format)) in done:
                    continue
                done.add(key)
                fields: dict[str, Any] = {"a_formats": form.types, "b_formats": form.types, "k": sizes}
                fields |= {"source": form.source, "evidence": form.evidence_on(row.target)} | form.changes
                yield replace(row, **fields)


# ---- storage


def compress(
    a: ArrayLike, format: str | ElementType | None = None, *, unit: Unit | None = None
) -> tuple[Codes, Positions]:
    """Return the operands of a sparse instruction for a matrix (..., K) with enough zeros: stored codes and positions.

    Both results are (..., K / 2). `format` may be left out for an array of ml_dtypes. At most two of each four
    neighbors (tf32: one of two) may be nonzero; zeros of either sign count as zeros. If fewer are nonzero, the first
    free places are stored, too, and positions rise within a group. `unit` "tcgen05.mxf4" and "tcgen05.mxf4nvf4" store
    two of the four pairs of each eight.
    compress(np.uint16([[0, 0, 0x3c00, 0]]), "f16")[1] is [[0, 2]], and the stored codes are 0 and 0x3c00.
    Raises RefsimError `not-sparse` with the place of a group with too many nonzero elements. Source: PTX ISA, sparse
    matrix storage.
    """
    codes, row = _codes(a, format)
    sparsity = sparsity_of(row, unit)
    if codes.ndim < 1 or codes.shape[-1] == 0 or codes.shape[-1] % sparsity.group:
        raise RefsimError("bad-shape", f"rows of {codes.shape} codes are not whole groups of {sparsity.group}")
    groups = codes.reshape(*codes.shape[:-1], codes.shape[-1] // sparsity.group, sparsity.group)
    present = groups & codes.dtype.type(_magnitudes(row)) != 0
    runs = present.reshape(*groups.shape[:-1], -1, sparsity.together).any(axis=-1)
    counts = runs.sum(axis=-1)
    if (beyond := counts > sparsity.kept // sparsity.together).any():
        place = tuple(int(each[0]) for each in np.nonzero(beyond))
        things = "elements" if sparsity.together == 1 else "pairs"
        raise RefsimError(
            "not-sparse",
            f"{int(counts[place])} of the {runs.shape[-1]} {things} from {_element(place, sparsity.group)} on are nonzero",
            rule=f"PTX ISA, sparse matrix storage: {row} is {sparsity}",
            help="set the smallest to zero before",
        )
    order = np.argsort(~runs, axis=-1, kind="stable")[..., : sparsity.kept // sparsity.together]
    chosen = expanded_runs(np.sort(order, axis=-1), sparsity)
    shape = (*codes.shape[:-1], codes.shape[-1] // sparsity.group * sparsity.kept)
    stored = np.take_along_axis(groups, chosen, axis=-1).reshape(shape)
    return stored, chosen.astype(np.uint8).reshape(shape)


def expanded_runs(runs: NDArray[Any], sparsity: Sparsity) -> NDArray[Any]:
    """Return the positions of elements from the positions of their runs: pairs 0 and 2 are elements 0, 1, 4 and 5."""
    inside = runs[..., None] * sparsity.together + np.arange(sparsity.together)
    return inside.reshape(*runs.shape[:-1], -1)


def decompress(
    a: ArrayLike, metadata: ArrayLike, format: str | ElementType | None = None, *, unit: Unit | None = None
) -> Codes:
    """Return the whole matrix (..., K) of stored codes and their positions, both (..., K / 2); other elements are +0.

    Positions of a group may be in any order. This is the inverse of `compress`, except for zeros that are not stored.
    decompress(np.uint16([[0, 0x3c00]]), np.uint8([[0, 2]]), "f16") is [[0, 0, 0x3c00, 0]].
    Raises RefsimError `metadata` for positions that are equal or beyond their group. Source: PTX ISA, sparse matrix
    storage.
    """
    codes, row = _codes(a, format)
    sparsity = sparsity_of(row, unit)
    positions = checked_positions(metadata, codes.shape, sparsity)
    shape = (*codes.shape[:-1], codes.shape[-1] // sparsity.kept)
    groups = np.zeros((*shape, sparsity.group), codes.dtype)
    held = codes.reshape(*shape, sparsity.kept), positions.reshape(*shape, sparsity.kept).astype(np.intp)
    np.put_along_axis(groups, held[1], held[0], axis=-1)
    return groups.reshape(*codes.shape[:-1], groups.shape[-2] * sparsity.group)


def checked_positions(metadata: ArrayLike, shape: tuple[int, ...], sparsity: Sparsity) -> Positions:
    """Return the positions of stored codes of this shape; raise RefsimError `metadata` if no instruction takes them."""
    positions = native(array_of("metadata", metadata))
    if positions.dtype.kind not in "iu" or positions.shape != shape or not shape or shape[-1] % sparsity.kept:
        what = f"metadata is {positions.dtype} of shape {positions.shape}, a has shape {shape}"
        raise RefsimError("not-sparse", what, rule=f"a position for each stored code, {sparsity.kept} to a group")
    if (beyond := (positions < 0) | (positions >= sparsity.group)).any():
        place = tuple(int(each[0]) for each in np.nonzero(beyond))
        what = f"position {int(positions[place])} of stored element {place}"
        rule = f"positions in a group of {sparsity.group} are below {sparsity.group}"
        raise RefsimError("not-sparse", what, rule=rule)
    runs = positions.reshape(*shape[:-1], -1, sparsity.kept // sparsity.together, sparsity.together)
    first = runs[..., 0] - runs[..., 0] % sparsity.together
    if (torn := runs != first[..., None] + np.arange(sparsity.together)).any():
        group = tuple(int(each[0]) for each in np.nonzero(torn.any(axis=(-1, -2))))
        what = f"group {group} has positions {', '.join(map(str, runs[group].ravel().tolist()))}"
        raise RefsimError("not-sparse", what, rule=f"{sparsity}: the elements of a pair are stored side by side")
    if first.shape[-1] == 2 and (equal := first[..., 0] == first[..., 1]).any():
        group = tuple(int(each[0]) for each in np.nonzero(equal))
        position = int(first[..., 0][group])
        what = f"group {group} has positions {position} and {position}"
        raise RefsimError("not-sparse", what, rule="the positions of a group differ")
    return positions.astype(np.uint8)


def _codes(a: ArrayLike, format: str | ElementType | None) -> tuple[Codes, ElementType]:
    given, row = codes_and_format(a, format, "a", None)
    codes = native(array_of("a", given))
    if codes.dtype != row.code_dtype:
        what = f"a holds {codes.dtype}, codes of {row} are {row.code_dtype}"
        raise RefsimError("bad-dtype", what, help="or view a float's bits")
    return codes, row


def _magnitudes(row: ElementType) -> int:
    """Return the bits of a code that are all clear in a zero."""
    if row.is_integer:
        return row.code_limit - 1
    format = float_named(row)
    return (format.magnitude_limit - 1) << format.padding_bits


def _element(place: tuple[int, ...], group: int) -> tuple[int, ...]:
    return (*place[:-1], place[-1] * group)


# ---- products


def gathered(b: Codes, metadata: Positions, sparsity: Sparsity) -> Codes:
    """Return the elements of B (..., N, K) that each row of A meets, in storage order: (..., M, N, K / 2)."""
    stored = np.arange(metadata.shape[-1]) // sparsity.kept * sparsity.group
    places = (metadata + stored)[..., None, :]
    wide = b[..., None, :, :]
    missing = places.ndim - wide.ndim
    wide = wide.reshape((1,) * missing + wide.shape)
    places = places.reshape((1,) * -missing + places.shape)
    return np.take_along_axis(wide, places, axis=-1)


@dataclass(frozen=True, kw_only=True)
class SparseCall:
    """Describe a product to be computed by a profile of `sparse_profile`, whose instructions take `k` stored products.

    Each row of A is a product of its own, with the elements of B that it meets. `shape` is the shape of the result.
    """

    row: Profile
    k: int
    arguments: Arguments
    positions: Positions
    shape: tuple[int, ...]

    def parts(self) -> Iterator[Call]:
        """Yield calls whose results, concatenated along M, are the result of this call; each gathers a bounded part of
        B."""
        given = self.arguments
        a, b = np.asarray(given.a), np.asarray(given.b)
        step = max(1, _TILE // max(1, prod(b.shape[:-1]) * a.shape[-1]))
        for start in range(0, self.shape[-2], step):
            rows = slice(start, start + step)
            c = None if given.c is None else np.asarray(given.c)[..., rows, None, :]
            met = gathered(b, self.positions[..., rows, :], sparsity_of(given.a_format, self.row.unit))
            a_scale = None if given.a_scale is None else np.asarray(given.a_scale)[..., rows, None, :]
            b_scale = None if given.b_scale is None else np.asarray(given.b_scale)[..., None, :, :]
            own = replace(given, a=a[..., rows, None, :], b=met, c=c, a_scale=a_scale, b_scale=b_scale)
            call = fitted(own, self.row, self.k)
            yield replace(call, shape=(*call.shape[:-2], call.shape[-1]))

    def result(self) -> NDArray[Any]:
        """Return D, as floats or integers."""
        return np.concatenate([part.result() for part in self.parts()], axis=-2)


def sparse_call(arguments: Arguments, metadata: ArrayLike, row: Profile, k: int) -> SparseCall:
    """Return the call of a sparse instruction; raise RefsimError if operands and metadata do not fit each other."""
    a, b = (native(array_of(name, side)) for name, side in (("a", arguments.a), ("b", arguments.b)))
    sparsity, where = sparsity_of(arguments.a_format, row.unit), f"sparse {row.name}"
    if min(a.ndim, b.ndim) < 2 or not a.size or a.shape[-1] * sparsity.group != b.shape[-1] * sparsity.kept:
        raise RefsimError("bad-shape", f"a has shape {a.shape}, b has shape {b.shape}", where, f"{sparsity}: {_SHAPES}")
    positions = checked_positions(metadata, a.shape, sparsity)
    c = None if arguments.c is None else native(array_of("c", arguments.c))
    m, n = a.shape[-2], b.shape[-2]
    if c is not None and c.shape[-2:] != (m, n):
        raise RefsimError("bad-shape", f"c has shape {c.shape}", where, f"M = {m}, N = {n}")
    try:
        leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], () if c is None else c.shape[:-2])
    except ValueError:
        what = f"leading dimensions of {a.shape} and {b.shape} do not broadcast"
        raise RefsimError("bad-shape", what, where) from None
    return SparseCall(
        row=row, k=k, arguments=replace(arguments, a=a, b=b, c=c), positions=positions, shape=(*leading, m, n)
    )
