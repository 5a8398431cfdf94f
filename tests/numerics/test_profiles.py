"""The table of tensor-core arithmetic: coverage, parameters as published, look-up and refusal."""

from itertools import product
from typing import Any, get_args

import numpy as np
import pytest

from refsim import numerics
from refsim.errors import RefsimError
from refsim.evidence import Level
from refsim.formats import F16
from refsim.numerics import bounds
from refsim.numerics.dot import chains, definition
from refsim.numerics.methods import AFTER, BYTE_PAIRS, INTEGER, LATE, METHODS, RNE_F16, RNE_F32, RZ_E8M13, RZ_F32
from refsim.numerics.profiles import PROFILES, chip, profile, rows_of
from refsim.numerics.rows import Unit, where_c_enters

# chip, unit, type, result -> products a step, fraction bits, rounding, zero exponent
PARAMETERS = {
    ("sm_70", "mma.sync", "f16", "f32"): (4, 23, RZ_F32, -131),
    ("sm_70", "mma.sync", "f16", "f16"): (4, 23, RNE_F16, -19),
    ("sm_75", "mma.sync", "f16", "f32"): (8, 24, RZ_F32, -132),
    ("sm_80", "mma.sync", "bf16", "f32"): (8, 24, RZ_F32, -132),
    ("sm_86", "mma.sync", "f16", "f16"): (8, 24, RNE_F16, -20),
    ("sm_80", "mma.sync", "tf32", "f32"): (4, 24, RZ_F32, -132),
    ("sm_89", "mma.sync", "e4m3", "f32"): (16, 13, RZ_E8M13, -132),
    ("sm_89", "mma.sync", "e5m2", "f16"): (16, 13, RNE_F16, -20),
    ("sm_90a", "mma.sync", "f16", "f32"): (16, 25, RZ_F32, -133),
    ("sm_90a", "mma.sync", "e4m3", "f32"): (16, 25, RZ_F32, -133),
    ("sm_90a", "wgmma", "e4m3", "f32"): (32, 13, RZ_E8M13, -133),
    ("sm_90a", "wgmma", "e5m2", "f16"): (32, 13, RNE_F16, -21),
    ("sm_90a", "wgmma", "tf32", "f32"): (8, 25, RZ_F32, -133),
    ("sm_100a", "tcgen05.f16", "bf16", "f32"): (16, 25, RZ_F32, -133),
    ("sm_100a", "tcgen05.tf32", "tf32", "f32"): (8, 25, RZ_F32, -133),
    ("sm_100a", "tcgen05.f8f6f4", "e3m2", "f16"): (32, 25, RNE_F16, -21),
    ("sm_100a", "tcgen05.mxf8f6f4", "e2m3", "f32"): (32, 25, RZ_F32, -133),
    ("sm_100a", "tcgen05.mxf4nvf4", "e2m1", "f32"): (64, 35, RZ_F32, -139),
    ("sm_120a", "mma.sync", "e4m3", "f32"): (32, 25, RZ_F32, -133),
    ("sm_120a", "mma.sync.mxf4", "e2m1", "f32"): (64, 35, RZ_F32, -139),
    ("sm_120a", "mma.sync", "bf16", "f32"): (16, 25, RZ_F32, -133),
    ("sm_120a", "mma.sync", "f16", "f16"): (16, 25, RNE_F16, -21),
    ("sm_120a", "mma.sync", "tf32", "f32"): (8, 25, RZ_F32, -133),
    ("gfx942", "mfma", "f16", "f32"): (8, 24, RNE_F32, None),
    ("gfx942", "mfma", "tf32", "f32"): (4, 24, RNE_F32, None),
    ("gfx942", "mfma", "e4m3fnuz", "f32"): (16, 24, RNE_F32, None),
}


@pytest.mark.parametrize("key", PARAMETERS, ids=" ".join)
def test_parameters_are_the_published_ones(key: tuple[str, str, str, str]) -> None:
    target, unit, types, d_format = key
    row = profile(target, unit, types, types, d_format)
    assert (row.length, row.fraction, row.rounding, row.zero_exponent) == PARAMETERS[key]


def test_profile_and_description_agree_on_where_c_enters() -> None:
    for row in PROFILES:
        if row.evidence.level is not Level.UNVERIFIED:
            assert (where_c_enters(row) == AFTER) == (row.c_enters is LATE), row.name


@pytest.mark.parametrize(("target", "types", "kept"), [("gfx90a", "f16", True), ("sm_90a", "f16", False)])
def test_a_late_c_survives_products_that_cancel(target: str, types: str, kept: bool) -> None:
    """C = 2^-20 next to 2^15 - 2^15 is cut where C is aligned with the products, and added after them on CDNA2."""
    unit: Unit = "mfma" if target.startswith("gfx") else "mma.sync"
    row = profile(target, unit, types, types, "f32")
    a = np.zeros((1, max(row.k)), np.float16)
    a[0, :2] = 2.0**15, -(2.0**15)
    b, c = np.ones_like(a), np.full((1, 1), 2.0**-20, np.float32)
    how: dict[str, Any] = {"a_format": types, "b_format": types, "unit": unit, "target": target}
    d = numerics.mma(a.view(np.uint16), b.view(np.uint16), c, **how)
    assert (d.item() == c.item()) == kept == (row.c_enters is LATE)


def test_every_row_says_where_it_is_from_and_how_sure_it_is() -> None:
    for row in PROFILES:
        assert str(row.source)
        assert row.evidence.what
        assert str(row).startswith(row.name)
        assert row.evidence.level.word in str(row)


def test_two_rows_for_one_instruction_agree() -> None:
    seen: dict[tuple[object, ...], tuple[object, ...]] = {}
    for row in PROFILES:
        for key in product((row.target,), (row.unit,), row.a_formats, row.b_formats, (row.d_format,), row.k):
            arithmetic = (
                row.method,
                row.length,
                row.fraction,
                row.rounding,
                row.zero_exponent,
                row.order,
                row.c_enters,
            )
            assert seen.setdefault(key, arithmetic) == arithmetic


def test_every_unit_of_the_interface_has_rows() -> None:
    units = {row.unit for row in PROFILES}
    kinds = {f"tcgen05.{kind}" for kind in ("f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4")}
    assert units == kinds | {f"mma.sync.{kind}" for kind in ("mxf8f6f4", "mxf4", "mxf4nvf4")} | {
        "mma.sync",
        "wgmma",
        "mfma",
        "mfma.1k",
        "mfma.scale",
    }
    targets = {row.target for row in rows_of(unit="mma.sync")}
    assert targets >= {"sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"}
    assert {row.target for row in rows_of(unit="mfma")} >= {"gfx908", "gfx90a", "gfx942", "gfx950"}


def test_hopper_fp8_mma_sync_is_two_f16_steps_and_a_late_addition() -> None:
    row = profile("sm_90", "mma.sync", "e4m3", "e5m2", "f32", 32)
    assert (row.order, row.c_enters, row.operands) == (BYTE_PAIRS, LATE, F16)
    assert row.steps(8) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert row.evidence.level is Level.SILICON


def test_steps_ascend_and_cover_the_instruction() -> None:
    for row in PROFILES:
        for k in row.k:
            assert sorted(place for step in row.steps(k) for place in step) == list(range(k))
    assert profile("sm_80", "mma.sync", "f16", "f16", "f32").steps(16) == [list(range(8)), list(range(8, 16))]


def test_k_chooses_between_rows_of_one_chip() -> None:
    assert profile("sm_75", "mma.sync", "f16", "f16", "f32", 4).fraction == 23
    assert profile("sm_75", "mma.sync", "f16", "f16", "f32").fraction == 24


def test_suffixes_name_the_same_chip() -> None:
    assert [chip(target) for target in ("sm_90", "sm_90a", "sm_100f")] == ["sm_90", "sm_90", "sm_100"]
    assert chip("gfx90a") == "gfx90a"


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("sm_90", "wgmma", "e2m1", "e2m1", "f32"), "unknown-arithmetic", "sm_90 wgmma e4m3|e5m2 -> f32"),
        (("sm_70", "wgmma", "f16", "f16", "f32"), "wrong-target", "sm_90a"),
        (("sm_70", "mma.sync", "bf16", "bf16", "f32"), "unknown-arithmetic", "sm_70 mma.sync f16 -> f32"),
        (("sm_90", "wgmma", "f16", "bf16", "f32"), "unknown-arithmetic", "sm_90 wgmma bf16 -> f32"),
        (("sm_61", "mma.sync", "f16", "f16", "f32"), "unknown-target", "sm_"),
        (("sm_90", "wmma", "f16", "f16", "f32"), "unknown-name", "wgmma"),
        (("sm_90", "wgmma", "f16", "f16", "f32", 8), "instruction-k", "k: 16"),
    ],
)
def test_unknown_combinations_are_refused_with_the_known_ones(arguments: tuple, code: str, part: str) -> None:
    with pytest.raises(RefsimError) as error:
        profile(*arguments)
    assert error.value.code == code
    assert part in error.value.help


def test_every_method_has_its_step_its_arrays_and_its_loss() -> None:
    assert {row.method for row in PROFILES} <= set(METHODS)
    assert len({row.name for row in METHODS}) == len(METHODS)
    sums = {row for row in METHODS if row is not INTEGER}
    assert set(definition._STEPS) == set(bounds._LOSSES) == sums
    arrays = set(chains._PRODUCTS) | set(chains._STEPS) | {row for row in METHODS if row.groups}
    assert arrays == set(METHODS)


def test_c_is_added_last_where_it_is_late_and_the_method_does_not_add_it_itself() -> None:
    late = {(row.target, row.unit) for row in PROFILES if row.adds_c_last}
    assert late >= {("sm_90", "mma.sync"), ("sm_100", "mma.sync")}
    assert late.isdisjoint({("sm_90", "wgmma"), ("sm_80", "mma.sync"), ("gfx942", "mfma")})
    assert {row.target for row in PROFILES if row.c_enters == LATE} >= {"sm_90", "sm_100", "gfx942"}


def test_the_units_that_types_know_are_those_of_the_rows() -> None:
    assert set(get_args(Unit)) == {row.unit for row in PROFILES}
