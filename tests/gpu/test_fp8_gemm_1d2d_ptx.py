"""The GEMMs of gpu/kernels/fp8_gemm_1d2d*.cu as PTX: their entries, promotion and costs; and which entry is chosen."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from refsim.device.compile import compile_ptx
from refsim.ptx.machine.launch_rules import limits_of
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

pytestmark = pytest.mark.usefixtures("committed_ptx")
gemm = load_kernel_file(bundled_kernels("gemm_1d2d.py"))
splits = load_kernel_file(bundled_kernels("gemm_1d2d_splits.py"))
experts = load_kernel_file(bundled_kernels("gemm_1d2d_experts.py"))
FILES = (gemm, splits, experts)
ENTRIES = {name: (file, entry) for file in FILES for name, entry in file.ENTRIES.items()}


@lru_cache
def bodies(source: Path) -> dict[str, str]:
    text = compile_ptx(source, "sm_90a").text
    return {
        name: body.split(".visible .entry", 1)[0]
        for name, body in re.findall(r"\.entry (\w+)\((.*?)^}", text, re.M | re.S)
    }


def count(body: str, word: str) -> int:
    return len(re.findall(rf"^\s*(?:@!?%p\d+ )?{re.escape(word)}", body, re.MULTILINE))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.SOURCE.stem)
def test_the_file_has_the_entries_of_its_table(file: Any) -> None:
    assert set(bodies(file.SOURCE)) == set(file.ENTRIES)
    assert set(file.COSTS) == set(file.ENTRIES)


@pytest.mark.parametrize("name", list(ENTRIES))
def test_promotion_is_one_product_of_scales_and_one_fma(name: str) -> None:
    """Nothing that ptxas may contract or that rounds otherwise; sums are added only where K is in parts, rounded each time, and
    outputs stored one by one only where rows are left out."""
    file, entry = ENTRIES[name]
    body = bodies(file.SOURCE)[name]
    assert count(body, "fma.rn.f32") >= entry.block_n // 2
    assert count(body, "fma.rn.f32") % (entry.block_n // 2) == 0
    forbidden = ["mul.f32", "add.f32", "fma.rn.ftz", "mul.rn.ftz", "ld.local", "st.local"]
    forbidden += ["add.rn.f32"] if file is not splits else []
    forbidden += ["st.global", "atom.global"] if file is gemm else ["red.", "atom.global.add.f32"]
    for word in forbidden:
        assert count(body, word) == 0, word
    assert set(re.findall(r"cvt\.[\w.]*bf16x2[\w.]*", body)) <= {"cvt.rn.bf16x2.f32"}


@pytest.mark.parametrize("name", list(ENTRIES))
def test_every_entry_fits_a_multiprocessor(name: str) -> None:
    _, entry = ENTRIES[name]
    assert entry.shared_bytes <= limits_of("sm_90a").opt_in
    assert entry.block_m % (64 * entry.groups) == 0
    waves = entry.block_m // entry.groups // 64
    assert entry.block_n % entry.staged == 0 or entry.staged == entry.block_n * waves


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((1, 7168, 16384), (64, 64)),
        ((64, 7168, 16384), (64, 64)),
        ((64, 24576, 1536), (64, 128)),
        ((128, 7168, 16384), (64, 128)),
        ((4096, 2112, 7168), (128, 192)),
        ((4096, 4096, 7168), (256, 128)),
    ],
)
def test_the_cheapest_entry_is_chosen(shape: tuple[int, int, int], tile: tuple[int, int]) -> None:
    """As measured on an H200, where every entry was timed at every shape."""
    entry = gemm.chosen(*shape)
    assert (entry.block_m, entry.block_n) == tile
    assert gemm.cost(entry, *shape) == min(
        gemm.cost(each, *shape) for each in gemm.fitting(gemm.ENTRIES.values(), shape[0])
    )


@pytest.mark.parametrize(
    ("shape", "parts", "name"),
    [
        ((8, 7168, 16384), 1, "fp8_gemm_1d2d_splits_64x8_swapped"),
        ((17, 7168, 16384), 1, "fp8_gemm_1d2d_splits_64x32_swapped"),
        ((64, 2112, 7168), 4, "fp8_gemm_1d2d_splits_64x64_swapped"),
        ((4096, 4096, 7168), 1, "fp8_gemm_1d2d_256x128_1x2"),
    ],
)
def test_few_rows_choose_a_tile_that_has_few(shape: tuple[int, int, int], parts: int, name: str) -> None:
    entry = splits.chosen(*shape, splits=parts)
    assert entry.name == name
    costs = [splits.cost(each, *shape, parts) for each in splits.ENTRIES.values()]
    assert splits.cost(entry, *shape, parts) <= min(costs)


def test_experts_choose_a_tile_that_their_alignment_allows() -> None:
    """8 x 512 rows as one matrix of 4096; tiles of 256 rows only where experts begin at multiples of 256."""
    counts = [512] * 8
    assert experts.chosen(counts, 4096, 7168, 256).rows == 256
    assert experts.chosen(counts, 4096, 7168, 128).rows == 128
    assert experts.chosen([5, 0, 8], 4096, 7168).rows == 8
    assert experts.chosen([60] * 8, 4096, 7168).rows == 64
    assert experts.units(experts.ENTRIES["fp8_gemm_1d2d_experts_masked_128x128_1x2"], [129, 0, 1], 264) == 6
    assert not experts.chosen(counts, 4096, 7168, 128).masked
    assert experts.chosen(counts, 4096, 7168).masked


@pytest.mark.parametrize(
    ("k", "parts", "expected"), [(896, 4, (4, 2)), (1024, 5, (4, 2)), (80, 3, (1, 1)), (384, 9, (3, 1))]
)
def test_no_part_of_k_is_empty(k: int, parts: int, expected: tuple[int, int]) -> None:
    assert splits.parts_of(k, parts) == expected
