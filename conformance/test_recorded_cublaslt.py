"""What cuBLASLt returned on an H200 and an H100, replayed: every output of a recorded shape has the model's bits."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from refsim import oracles
from refsim.errors import RefsimError
from refsim.numerics import ieee
from refsim.oracles.cublaslt import BLOCKWISE, computed
from refsim.oracles.gemm_1d2d import fp8_gemm_1d2d
from refsim.silicon import cublaslt_probe as probe
from refsim.silicon.vectors import recordings, sidecar
from refsim.testing.kernel_files import load_kernel_file

CHIPS = tuple(region.chip for region in oracles.CUBLASLT_REGIONS)
REGIONS = {region.chip: region for region in oracles.CUBLASLT_REGIONS}
MODES = {mode.name: mode for mode in probe.MODES}
SHARES = {"quick": 8, "ci": 2, "night": 1}  # of the cases one in so many
NOT_RUN = 0xFFFF


@pytest.fixture
def share(refsim_profile: str) -> int:
    return SHARES[refsim_profile]


@cache
def recorded(chip: str, mode: str):
    """The words, and the name of the kernel that wrote them, "" where the library was not asked."""
    arrays, names = recordings(probe.STEM, chip)[mode].arrays, [*sidecar(probe.STEM, chip)["kernels"]]
    kernels = [names[place] if place != NOT_RUN else "" for place in arrays["kernel"]]
    return arrays["words"], kernels


@cache
def sums(number: int, mode: str, splits: int) -> np.ndarray:
    """The model's words: both chips are compared with them, and bf16 is made of the same sums as float32."""
    return probe.modelled(probe.cases()[number], MODES[mode], splits)


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32) if values.dtype == np.float32 else values


def asked(chip: str, mode: str, share: int = 1):
    """The cases that ran in a mode, each with the number of ranges recorded for it."""
    _, kernels = recorded(chip, mode)
    for case in probe.cases()[::share]:
        if kernels[case.number]:
            yield case, probe.recorded_splits(case, MODES[mode], REGIONS[chip])


@pytest.mark.parametrize("mode", MODES)
def test_every_output_of_a_proven_shape_has_the_bits_of_the_model(mode: str, share: int) -> None:
    wrong = []
    for chip in CHIPS:
        words, _ = recorded(chip, mode)
        for case, splits in asked(chip, mode, share):
            if splits is not None and (bits(sums(case.number, mode, splits)) != words[case.number]).any():
                wrong.append((chip, case, splits))
    assert wrong == []


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("mode", MODES)
def test_a_kernel_splits_k_where_the_region_says_so(chip: str, mode: str) -> None:
    """The name of a kernel says whether it splits K: for every recorded shape that is what the region says of it."""
    _, kernels = recorded(chip, mode)
    known = [(case, splits) for case, splits in asked(chip, mode) if splits is not None]
    wrong = [case for case, splits in known if ("splitK" in kernels[case.number]) != (splits > 1)]
    assert wrong == []
    assert len(known) > 200


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("scaling", ["tensor", BLOCKWISE])
def test_the_region_covers_95_percent_of_random_shapes(chip: str, scaling: oracles.CublasltScaling) -> None:
    draw = np.random.default_rng(12)
    step = 4 if scaling == BLOCKWISE else 1
    shapes = [
        (int(draw.integers(1, 8192 // step + 1)) * step, *(16 * draw.integers(1, 1025, 2))) for _ in range(20_000)
    ]
    covered = np.mean([REGIONS[chip].splits(*map(int, shape), scaling) is not None for shape in shapes])
    assert covered > 0.95
    assert covered < 1


def test_the_oracle_answers_as_the_model_of_the_recording_does() -> None:
    """One whole call a mode, from full operands: row and column picks, scales by block of rows."""
    case = next(case for case in probe.cases() if case.m * case.n < 1 << 16 and 512 < case.k < 2048 and case.n > 128)
    a, b = (probe.codes(np.arange(size), case.k, name) for name, size in (("a", case.m), ("b", case.n)))
    for mode in probe.MODES:
        scales = probe.SCALES
        if mode.scaling == BLOCKWISE:
            sides = (("scale_a", case.m), ("scale_b", -(-case.n // 128)))
            scales = tuple(probe.block_scales(np.arange(size), case.k, name) for name, size in sides)
        found = oracles.cublaslt_fp8(
            a,
            b,
            *scales,
            scaling=mode.scaling,
            accumulation=mode.accumulation,
            out=mode.out,
            rows=case.rows,
            cols=case.columns,
        )
        np.testing.assert_array_equal(bits(found), bits(probe.modelled(case, mode)))


# ---- what the recording refuses --------------------------------------------------------------------------------------


def _fast_by_blocks(a, b, by_row, by_column, scaling, accumulation, splits, out):
    return computed(a, b, by_row, by_column, scaling, "slow", splits, out)


def _slow_in_one_chain(a, b, by_row, by_column, scaling, accumulation, splits, out):
    return computed(a, b, by_row, by_column, scaling, "fast", splits, out)


def _scale_after_scale(a, b, by_row, by_column, scaling, accumulation, splits, out):
    one = np.ones((1, 1), np.float32)
    return ieee.mul(ieee.mul(computed(a, b, one, one, scaling, accumulation, splits, "f32"), by_row), by_column)


def _unsplit(a, b, by_row, by_column, scaling, accumulation, splits, out):
    return computed(a, b, by_row, by_column, scaling, accumulation, 1, out)


def _promoted(name):
    def mutant(a, b, by_row, by_column, scaling, accumulation, splits, out):
        return fp8_gemm_1d2d(a, b, by_row, by_column, promotion=name, splits=splits, out=out)

    return mutant


MUTANTS = {
    "fast added by blocks": ("fast_f32", _fast_by_blocks),
    "slow in one chain": ("slow_f32", _slow_in_one_chain),
    "fast, one scale after the other": ("fast_f32", _scale_after_scale),
    "slow, one scale after the other": ("slow_f32", _scale_after_scale),
    "blocks promoted a_then_b": ("block_f32", _promoted("a_then_b")),
    "blocks promoted b_then_a": ("block_f32", _promoted("b_then_a")),
}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", MUTANTS)
def test_another_order_of_operations_is_refused(name: str, chip: str) -> None:
    mode, change = MUTANTS[name]
    words, _ = recorded(chip, mode)
    some = [(case, splits) for case, splits in asked(chip, mode, 25) if splits == 1 and case.k > 256]
    found = [bits(probe.modelled(case, MODES[mode], 1, change)) != words[case.number] for case, _ in some]
    assert len(some) >= 5
    assert np.mean([each.any() for each in found]) > 0.5


@pytest.mark.parametrize("mode", ["fast_f32", "block_f32"])
def test_a_split_product_is_no_unsplit_one(mode: str) -> None:
    words, _ = recorded("h200", mode)
    some = [(case, splits) for case, splits in asked("h200", mode) if (splits or 1) > 1][:8]
    assert len(some) == 8
    for case, splits in some:
        assert (bits(sums(case.number, mode, splits)) == words[case.number]).all()
        assert (bits(probe.modelled(case, MODES[mode], splits, _unsplit)) != words[case.number]).any()


def test_blockwise_ranges_are_no_ranges_of_single_blocks() -> None:
    words, _ = recorded("h200", "block_f32")
    some = [(case, splits) for case, splits in asked("h200", "block_f32") if (splits or 1) > 1]
    change = _promoted("scale_product")
    wrong = [
        bits(probe.modelled(case, MODES["block_f32"], splits, change)) != words[case.number] for case, splits in some
    ]
    assert np.mean([each.any() for each in wrong]) > 0.5


def test_where_nothing_is_recorded_the_oracle_refuses() -> None:
    with pytest.raises(RefsimError, match="unsupported-feature"):
        oracles.cublaslt_fp8(*(np.zeros((size, 8192), np.uint8) for size in (64, 1024)), 1, 1)


OTHER_REGIONS = {
    "longer ranges": ("fast_f32", {"range_k": 3072}),
    "shorter ranges": ("fast_f32", {"range_k": 2304}),
    "never split": ("fast_f32", {"unsplit_k": 16384}),
    "more small tiles": ("fast_f32", {"split_tiles": {"tensor": (64, 8, 64)}}),
    "longer ranges of blocks": ("block_f32", {"range_k": 3072}),
    "less memory for sums": ("block_f32", {"workspace": 1 << 17}),
    "more memory for sums": ("block_f32", {"workspace": 1 << 19}),
}


@pytest.mark.parametrize("name", OTHER_REGIONS)
def test_another_region_is_refused(name: str) -> None:
    """Each bound is needed: with another one some recorded product has other bits than the model."""
    mode, change = OTHER_REGIONS[name]
    region = replace(REGIONS["h200"], **change)
    words, kernels = recorded("h200", mode)
    for case, _ in asked("h200", mode):
        splits = probe.recorded_splits(case, MODES[mode], region)
        tells = splits is not None and (splits > 1 or "splitK" in kernels[case.number])
        if tells and (bits(sums(case.number, mode, splits)) != words[case.number]).any():
            return
    pytest.fail(f"the recording has nothing against {change}")


def test_the_report_is_what_its_command_writes(refsim_profile: str) -> None:
    """All of it at night; all runs look at the facts of both recordings."""
    report = load_kernel_file(Path(__file__).parent / "cublaslt/report.py")
    committed = report.PAGE.read_text("utf-8")
    if refsim_profile == "night":
        assert committed == report.page()
    for chip in CHIPS:
        assert str(sidecar(probe.STEM, chip)["date"]) in committed
