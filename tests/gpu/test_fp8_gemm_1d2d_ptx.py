"""The GEMM of gpu/kernels/fp8_gemm_1d2d.cu as PTX: its entries, its promotion, its costs; and which entry is chosen."""

import re
from functools import lru_cache
from pathlib import Path

import pytest

from refsim.device.compile import compile_ptx
from refsim.ptx.machine.limits import limits_of
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

SOURCE = Path(__file__).resolve().parents[2] / "gpu" / "kernels" / "fp8_gemm_1d2d.cu"
gemm = load_kernel_file(bundled_kernels("gemm_1d2d.py"))


@lru_cache
def bodies() -> dict[str, str]:
    text = compile_ptx(SOURCE, "sm_90a").text
    return {
        name: body.split(".visible .entry", 1)[0]
        for name, body in re.findall(r"\.entry (\w+)\((.*?)^}", text, re.M | re.S)
    }


def count(body: str, word: str) -> int:
    return len(re.findall(rf"^\s*(?:@!?%p\d+ )?{re.escape(word)}", body, re.MULTILINE))


def test_the_file_has_the_entries_of_its_table() -> None:
    assert set(bodies()) == set(gemm.ENTRIES)
    assert set(gemm.COSTS) == set(gemm.ENTRIES)


@pytest.mark.parametrize("name", list(gemm.ENTRIES))
def test_promotion_is_one_product_of_scales_and_one_fma(name: str) -> None:
    """Nothing that ptxas may contract or that rounds otherwise."""
    body = bodies()[name]
    assert count(body, "fma.rn.f32") >= gemm.ENTRIES[name].block_n // 2
    assert count(body, "fma.rn.f32") % (gemm.ENTRIES[name].block_n // 2) == 0
    for word in ("mul.f32", "add.f32", "add.rn.f32", "fma.rn.ftz", "mul.rn.ftz", "st.global", "ld.local", "st.local"):
        assert count(body, word) == 0, word
    assert set(re.findall(r"cvt\.[\w.]*bf16x2[\w.]*", body)) <= {"cvt.rn.bf16x2.f32"}


@pytest.mark.parametrize("name", list(gemm.ENTRIES))
def test_every_entry_fits_a_multiprocessor(name: str) -> None:
    entry = gemm.ENTRIES[name]
    assert entry.shared_bytes <= limits_of("sm_90a").opt_in
    assert entry.block_m % (64 * entry.groups) == 0
    assert entry.block_n % entry.staged == 0


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((1, 7168, 16384), (64, 64)),
        ((64, 7168, 16384), (64, 64)),
        ((128, 7168, 16384), (64, 128)),
        ((4096, 2112, 7168), (128, 176)),
        ((4096, 4096, 7168), (256, 128)),
    ],
)
def test_the_cheapest_entry_is_chosen(shape: tuple[int, int, int], tile: tuple[int, int]) -> None:
    """As measured on an H200, where every entry was timed at every shape."""
    entry = gemm.chosen(*shape)
    assert (entry.block_m, entry.block_n) == tile
    assert gemm.cost(entry, *shape) == min(gemm.cost(each, *shape) for each in gemm.ENTRIES.values())
