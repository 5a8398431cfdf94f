"""numerics.mma against mmaemu 0.1.0, an independent model of FP8 products on Hopper and Ada, word for word.

`mmaemu.model.chain.dot` is one chain of its instruction model and takes C; `mmaemu.accumulate` is a whole product as
cuBLAS on an H100 chains it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim.formats import E4M3, F32
from refsim.numerics import PROFILES, Profile, mma, multiply
from refsim.numerics.methods import LATE, RNE_F32, RZ_F32

pytestmark = pytest.mark.peers("torch", "mmaemu")

COUNT = 100_000  # dot products a pair of formats and unit, at least
FORMATS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
PRESETS = {("sm_90", "wgmma"): "hopper", ("sm_89", "mma.sync"): "ada"}
ROWS = [row for row in PROFILES if (row.target, row.unit) in PRESETS and E4M3 in row.a_formats and row.d_format is F32]
PAIRS = [(a, b) for a in FORMATS for b in FORMATS]
MUTANTS = {
    "F -1": {"fraction": 12},
    "F +1": {"fraction": 14},
    "half of L": {"length": 8},
    "late C": {"c_enters": LATE},
    "23 bits": {"rounding": RZ_F32},
    "to nearest": {"rounding": RNE_F32},
}


def tensor(codes: NDArray[np.uint8], format: str) -> Any:
    import torch

    return torch.from_numpy(codes).view(getattr(torch, FORMATS[format]))


def preset(row: Profile) -> str:
    return PRESETS[row.target, row.unit]


def dots(row: Profile, formats: tuple[str, str], drawn: Any) -> NDArray[np.uint32]:
    """The words of mmaemu's chain for every row of A with every row of B."""
    import torch
    from mmaemu.model import chain

    shape = (*drawn.c.shape, drawn.a.shape[-1])
    a, b = (
        tensor(np.broadcast_to(codes, shape).copy(), format)
        for codes, format in zip((drawn.a[:, :, None], drawn.b[:, None]), formats, strict=True)
    )
    words: NDArray[np.uint32] = chain.dot(a, b, torch.from_numpy(drawn.c.view(np.float32)), preset=preset(row)).numpy()
    return words.view(np.uint32)


def ours(row: Profile, formats: tuple[str, str], drawn: Any) -> NDArray[np.uint32]:
    kinds = {"a_format": formats[0], "b_format": formats[1], "d_format": "f32"}
    d = mma(drawn.a, drawn.b, drawn.c.view(np.float32), unit=row.unit, target=row.target, **kinds)
    return d.view(np.uint32)


@pytest.mark.parametrize("formats", PAIRS, ids="-".join)
@pytest.mark.parametrize("row", ROWS, ids=preset)
def test_chains_from_any_c_equal_mmaemu(row: Profile, formats: tuple[str, str], cases: Callable[..., Any]) -> None:
    """Chains of one, two and seven instructions, from every class of C."""
    count = 0
    for seed, chain in enumerate((1, 2, 7)):
        drawn = cases(*formats, "f32", 32 * chain, COUNT // 3 + 1, seed)
        got, want = ours(row, formats, drawn), dots(row, formats, drawn)
        count += drawn.count
        wrong = np.argwhere(got != want)
        assert not len(wrong), [(hex(x[tuple(wrong[0])])) for x in (drawn.c, got, want)]
    print(f"{row.name}, {formats}: {count} dot products")
    assert count >= COUNT


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("row", ROWS, ids=preset)
def test_changed_parameters_are_refused(
    row: Profile, mutant: str, cases: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = cases("e4m3", "e5m2", "f32", 64, COUNT // 10, 0)
    want = dots(row, ("e4m3", "e5m2"), drawn)
    assert (ours(row, ("e4m3", "e5m2"), drawn) == want).all()
    monkeypatch.setattr(multiply, "profile", lambda *_: replace(row, **MUTANTS[mutant]))
    assert (ours(row, ("e4m3", "e5m2"), drawn) != want).any()


def operands(kind: str, m: int, n: int, k: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes of E4M3: any but NaN, or normal numbers of about one, some of them NaN."""
    random = np.random.default_rng(k)
    a, b = (random.integers(0, 0x7F, (rows, k), np.uint8) for rows in (m, n))
    if kind == "near one":
        a, b = (random.integers(0x28, 0x48, (rows, k), np.uint8) for rows in (m, n))
        a[::37, ::101] = b[::53, ::113] = 0x7F
    return (codes | random.integers(0, 2, codes.shape, np.uint8) << np.uint8(7) for codes in (a, b))


def accumulated(a: NDArray[np.uint8], b: NDArray[np.uint8], *, fast: bool) -> NDArray[np.uint32]:
    import mmaemu

    words = mmaemu.accumulate(tensor(a, "e4m3"), tensor(b, "e4m3"), use_fast_accum=fast, splitk=1)
    return words.numpy().view(np.uint32)


@pytest.mark.parametrize("kind", ["any", "near one"])
def test_fast_accumulation_is_one_chain(kind: str) -> None:
    a, b = operands(kind, 256, 256, 1024)
    np.testing.assert_array_equal(mma(a, b, None).view(np.uint32), accumulated(a, b, fast=True))


def test_slow_accumulation_adds_chains_of_128() -> None:
    """cuBLAS without fast accumulation begins anew every 128 products and adds the chains in float32."""
    a, b = operands("any", 128, 128, 1024)
    total = np.zeros((128, 128), np.float32)
    for start in range(0, 1024, 128):
        total += mma(a[:, start : start + 128], b[:, start : start + 128], None)
    np.testing.assert_array_equal(total.view(np.uint32), accumulated(a, b, fast=False))


def test_a_1024_cube_is_equal_word_for_word() -> None:
    a, b = operands("near one", 1024, 1024, 1024)
    np.testing.assert_array_equal(mma(a, b, None).view(np.uint32), accumulated(a, b, fast=True))
