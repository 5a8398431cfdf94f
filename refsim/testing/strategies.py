"""Hypothesis strategies of recipes: they shrink towards n = 0, zeros, no patches, no offset.

Use as `from refsim.testing import strategies as rst`.
"""

from collections.abc import Sequence
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from refsim.errors import RefsimError, unknown
from refsim.formats import Format, format_named
from refsim.reference.operands import special_codes
from refsim.testing.recipes import FILLS, MAX_MISALIGN, Launch, Tensor

__all__ = ["bit_patterns", "launches", "misalignments", "sizes", "tensors"]
__dir__ = partial(sorted, __all__)


EDGES = ((0, 1), (7, 9), (255, 257), (1023, 1025), (2047, 2049))


def sizes(max_size: int = 4096, *, multiple_of: int = 1) -> SearchStrategy[int]:
    """Return a strategy of counts up to `max_size`, often at edges: 0, 1, 7..9, around 256, 1024, 2048, the last two.

    `multiple_of` keeps to multiples (of a vector width, a block): sizes(multiple_of=128) draws 0, 128, 256, ...
    """
    if max_size < 0 or multiple_of < 1:
        raise RefsimError("out-of-range", f"sizes up to {max_size} in steps of {multiple_of} do not exist")
    top = max_size // multiple_of
    # The full range comes first: it contains every edge, so that shrinking can leave an edge.
    ranges = [(0, top), *((low, min(high, top)) for low, high in EDGES if low <= top), (max(top - 1, 0), top)]
    return st.one_of([st.integers(low, high) for low, high in ranges]).map(lambda count: count * multiple_of)


def bit_patterns(format: str | Format) -> SearchStrategy[int]:
    """Return a strategy of codes; half of the draws are special codes: zero, range ends, infinity, NaN."""
    row = format_named(format)
    return st.one_of(st.sampled_from(sorted(special_codes(row))), st.integers(0, row.code_limit - 1))


def misalignments(max_elements: int = 15) -> SearchStrategy[int]:
    """Return a strategy of offsets from the natural alignment in elements: 0 is simplest, odd values are frequent."""
    if not 0 <= max_elements <= MAX_MISALIGN:
        raise RefsimError("out-of-range", f"max_elements must be in 0..{MAX_MISALIGN}, not {max_elements}")
    return st.one_of(st.just(0), st.integers(0, max_elements))


def launches(max_blocks: int = 5) -> SearchStrategy[Launch]:
    """Return a strategy of launches of 32 to 1024 threads, with enough blocks or with 1 to `max_blocks`."""
    return st.builds(Launch, st.sampled_from([256, 32, 64, 1024]), st.integers(0, max_blocks))


def tensors(
    formats: str | Sequence[str],
    *,
    target: str = "e4m3",
    fills: Sequence[str] = tuple(FILLS),
    max_size: int = 4096,
    max_patches: int = 3,
    max_misalign: int = 15,
) -> SearchStrategy[Tensor]:
    """Return a strategy of tensors in one of `formats`; the fills ties and near-overflow use the format `target`.

    A quarter of the tensors are ordinary numbers, if `fills` has gaussian: special values hide how a sum rounds.
    It shrinks to Tensor(n=0, format=formats[0]); a failure that needs one value shrinks to one patch in zeros.
    """
    chosen = [formats] if isinstance(formats, str) else list(formats)
    for format in (*chosen, target):
        format_named(format)
    for fill in fills:
        if fill not in FILLS:
            raise unknown("fill", fill, sorted(FILLS))
    if not chosen:
        raise RefsimError("unknown-format", "no format is named", help='tensors("bf16"), tensors(["f16", "f32"])')
    return _tensors(chosen, target, list(fills), max_size, max_patches, max_misalign)


@st.composite
def _tensors(
    draw: st.DrawFn,
    formats: list[str],
    target: str,
    fills: list[str],
    max_size: int,
    max_patches: int,
    max_misalign: int,
) -> Tensor:
    """Draw one tensor recipe."""
    format = draw(st.sampled_from(formats))
    n = draw(sizes(max_size))
    fill = draw(st.sampled_from(fills))
    seed = draw(st.integers(0, 2**16 - 1))
    patch = st.tuples(st.integers(0, max(n - 1, 0)), bit_patterns(format))
    patches = draw(st.lists(patch, max_size=max_patches if n else 0, unique_by=lambda pair: pair[0]))
    if seed % 4 == 3 and "gaussian" in fills:
        fill, patches = "gaussian", []
    return Tensor(n, format, fill, seed, target, tuple(sorted(patches)), draw(misalignments(max_misalign)))


def share(part: float) -> settings:
    """Return settings for a law whose cases are expensive or cheap: `part` of the profile's cases, at least one.

    It decorates a law; all other settings, including the seed, are the profile's. With `quick`, 25 cases a law,
    `share(1 / 5)` is 5, with `ci` it is 40; without --refsim-profile it is a share of Hypothesis's own 100.
    """
    return settings(max_examples=max(1, round(part * settings().max_examples)))
