"""The comparison with published dot products: what it counts, what it refuses, and what the committed page says."""

from pathlib import Path

import numpy as np
import pytest

from conformance import published_dot_products as published
from conformance.published_sample import chosen, told_apart
from refsim.evidence import Level
from refsim.numerics.profiles import PROFILES
from refsim.silicon.tensor_witness import published as bundled

PAGE = (Path(__file__).parent / "reports/published_dot_products.md").read_text("utf-8")
ROWS = [tuple(cell.strip() for cell in line.strip("| \n").split("|")) for line in PAGE.splitlines() if "| sm_" in line]
# -2^23 - 0.5 - 0.25 - 0.125 with C = 2^23: each keeps its own share of -0.875, which is a line of README.md.
SHARES = {"V100_fp16": 0.0, "A100_bf16": -0.5, "Ada_E5M2": 0.0, "B200_bf16": -0.75, "B200_E5M2": 0.0}


def words(values) -> np.ndarray:
    return np.asarray(values, np.float32).view(np.uint32)


def folder_with(folder: Path, name: str, d: float) -> Path:
    """A set of one dot product."""
    k = {"V100": 4, "A100": 8}.get(name.partition("_")[0], 32 if "E5M2" in name else 16)
    a, b = np.zeros((1, k)), np.zeros((1, k))
    a[0, :4], b[0, :4] = (-(2.0**13), -0.5, -0.25, -0.125), (2.0**10, 1, 1, 1)
    np.savez(folder / f"{name}.npz", a=words(a), b=words(b), c=words([2.0**23]), d_fp32=words([d]))
    return folder


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["published_dot_products", *map(str, arguments)])
    return published.main()


@pytest.mark.parametrize("name", SHARES)
def test_what_a_chip_keeps_agrees_and_anything_else_differs(name, tmp_path, monkeypatch, capsys):
    assert asked(monkeypatch, folder_with(tmp_path, name, SHARES[name])) == 0
    assert capsys.readouterr().err == "1 results, 0 differing\n"
    assert asked(monkeypatch, folder_with(tmp_path, name, -0.875)) == 1
    assert "| 1 | 1 |" in capsys.readouterr().out


def test_fp8_into_f32_on_hopper_was_given_no_c(tmp_path, monkeypatch):
    """wgmma without C: at 2^23 its 14 bits keep nothing of 0.875."""
    assert asked(monkeypatch, folder_with(tmp_path, "H200_E5M2", -(2.0**23))) == 0


@pytest.mark.parametrize("name", ["", "V100_E3M2.npz", "P100_fp16.npz", "A100_bf16.npz"])
def test_what_is_no_published_set_is_refused(name, tmp_path, monkeypatch, capsys):
    if name:
        (tmp_path / name).write_bytes(b"not an archive")
    page = tmp_path / "page.md"
    assert asked(monkeypatch, tmp_path, "-o", page) == 3
    assert not page.exists()
    assert str(tmp_path) in capsys.readouterr().err


def test_the_page_has_what_the_rows_rest_on():
    """Each row of the model that says "published" has a line for its chip, its types and its result."""
    assert len(ROWS) == 76
    assert {row[-1] for row in ROWS} == {"0"}
    assert sum(int(row[-2].replace(",", "")) for row in ROWS) == 48 * 5_000 + 616_077 + 68
    lines = {(target, unit, types.split()[0], result) for _, target, unit, types, result, *_ in ROWS}
    told = [row for row in PROFILES if row.evidence.level is Level.SILICON and "published" in row.evidence.what]
    claimed = {(row.target, row.unit, type.name, row.d_format.name) for row in told for type in row.a_formats}
    assert len(told) > 15
    assert claimed <= lines


@pytest.mark.parametrize("target", ["sm_70", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100"])
def test_the_bundled_sample_of_a_chip_tells_wrong_entries_apart(target):
    """Results in f32; f16 shows less, and the FP8 products of the assembler's rewriting keep every bit."""
    samples = [each for each in bundled(target, "mma.sync") if each.types[2] == "f32" and each.k <= 16]
    assert samples
    for each in samples:
        assert not (each.modelled() != each.d).any()
        seen = {name for name, telling in told_apart(each).items() if telling.any()}
        assert {"fraction -1", "fraction +1", "C late"} <= seen, each.types


def test_dot_products_that_few_others_replace_are_kept():
    telling = np.zeros((2, 400), np.bool_)
    telling[0, ::2] = True
    telling[1, [3, 399]] = True
    kept = chosen(telling, 8)
    assert len(kept) == 8
    assert telling[:, kept].sum(axis=1).tolist() == [6, 2]
