"""The numerics and layouts suites on stand-ins for a device: the model itself, and the model with one defect."""

from dataclasses import replace

import numpy as np
import pytest

import refsim
from refsim.bringup import explain
from refsim.bringup.explain import DeviceAndModel, Dot, difference, model_of, smallest
from refsim.bringup.layouts import matrix_image, product_case, tasks, trials
from refsim.bringup.numerics import compare_case, discover_case, row_of
from refsim.bringup.report import DIFFERS
from refsim.bringup.tensor_cores import instructions
from refsim.errors import RefsimError
from refsim.numerics.methods import LATE, RNE_F32
from refsim.numerics.profiles import profile
from refsim.silicon.operand_starts import StartForm
from refsim.testing.verdicts import PASS

ROWS = {row.entry: row for row in instructions("sm_90a")}
FP8, BF16 = ROWS["mma_m16n8k32_f32_e4m3_e4m3"], ROWS["mma_m16n8k16_f32_bf16_bf16"]
WGMMA, INTEGER = ROWS["wgmma_m64n8k32_f32_e4m3_e4m3"], ROWS["mma_m16n8k16_s32_s8_u8"]


def right(instruction, **changes):
    return model_of(replace(instruction.profile("sm_90a"), **changes), instruction)


def compare(instruction, device):
    return compare_case(instruction, instruction.profile("sm_90a"), device, 1)


def with_other_nan(instruction):
    model = right(instruction)

    def products(a, b, c):
        d = model(a, b, c)
        return np.where(d == 0x7FFFFFFF, np.uint32(0x7FC00000), d)

    return products


def with_swapped_rows_of_c(instruction):
    model = right(instruction)
    order = [1, 0, *range(2, instruction.m)]
    return lambda a, b, c: model(a, b, None if c is None else c[:, order])


def with_one_wrong_place(instruction):
    model = right(instruction)

    def products(a, b, c):
        d = model(a, b, c).copy()
        d[:, 3, 5] ^= 1
        return d

    return products


@pytest.mark.parametrize("instruction", [FP8, BF16, INTEGER, WGMMA], ids=lambda row: row.entry)
def test_the_model_agrees_with_itself(instruction):
    case = compare(instruction, right(instruction))
    assert (case.status, case.differing) == (PASS, 0)
    assert case.words > 1000
    assert not case.unexplained


def test_another_chips_arithmetic_is_explained_by_its_row():
    case = compare(FP8, model_of(profile("sm_89", "mma.sync", "e4m3", "e4m3", "f32"), FP8))
    assert case.status == DIFFERS
    assert not case.unexplained
    assert case.difference.explanation.startswith("matches sm_89 mma.sync: L = 16, F = 13, rz-e8m13")


LATER = pytest.mark.ci("another set of parameters is found in every run")


@pytest.mark.parametrize(
    ("instruction", "changes", "words"),
    [
        pytest.param(WGMMA, {"fraction": 12}, "fits L = 32, F = 12, rz-e8m13", marks=LATER),
        pytest.param(WGMMA, {"length": 8}, "fits L = 8, F = 13, rz-e8m13", marks=LATER),
        pytest.param(BF16, {"zero_exponent": -126}, "fits L = 16, F = 25, rz-f32, zero exponent -126", marks=LATER),
        (BF16, {"rounding": RNE_F32, "c_enters": LATE}, "fits L = 16, F = 25, rne-f32, zero exponent -133, C late"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_parameters_that_no_chip_has_are_found_and_fail(instruction, changes, words):
    case = compare(instruction, right(instruction, **changes))
    assert case.unexplained
    assert case.difference.explanation.startswith(f"no known chip; {words}")
    assert case.difference.got != case.difference.want


def test_a_wrong_nan_is_unexplained_and_shown_in_bits():
    case = compare(BF16, with_other_nan(BF16))
    assert case.unexplained
    assert case.difference.got == "0x7fc00000 (nan)"
    assert case.difference.want == "0x7fffffff (nan)"
    assert case.difference.explanation.startswith("unexplained")


def flaky(instruction, wrong_calls):
    """The model, but for the lowest bit of one word in each of some calls."""
    model, calls = right(instruction), iter(range(1 << 30))

    def products(a, b, c):
        d = model(a, b, c).copy()
        if next(calls) in wrong_calls:
            d[0, 3, 5] ^= 1
        return d

    return products


@pytest.mark.parametrize("wrong_calls", [{0}, {1}, range(0, 1 << 20, 2)], ids=["once", "second", "every-other"])
def test_a_device_that_does_not_repeat_itself_is_told_as_such(wrong_calls):
    case = compare(BF16, flaky(BF16, wrong_calls))
    assert case.unexplained
    assert case.difference.smallest[0].startswith("D[3, 5] of K = ")
    assert ", then 0x" in case.difference.got
    assert case.difference.want in case.difference.got.split(", then ")
    assert "the same launch made again differs in 1 of" in case.difference.explanation


def test_a_word_that_agrees_when_asked_alone_once_more_has_no_smallest_case():
    """Wrong on every call while it is reduced, right at the last, which is the one that is shown."""
    model, dot = right(BF16), Dot((0x3F80,) + (0,) * 15, (0x3F80,) + (0,) * 15, 0, (0, 0))

    def told(wrong_calls):
        calls = []

        def products(a, b, c):
            calls.append(0)
            return model(a, b, c) ^ np.uint32(len(calls) <= wrong_calls)

        return difference(DeviceAndModel(products, model, BF16), [dot], ("no known chip", False)), len(calls)

    always, count = told(1 << 30)
    assert (always.got, always.explanation) == ("0x00000001 (1.40129846e-45)", "no known chip")
    found, _ = told(count - 1)
    assert found.got == found.want
    assert found.explanation.startswith("the device does not repeat itself")


def test_operands_that_cannot_be_made_are_a_bug_of_refsim_not_of_the_device(monkeypatch):
    def refuses(*arguments, **keywords):
        raise RefsimError("out-of-range", "0x47 is no code of e3m2")

    monkeypatch.setattr(explain, "cell_operands", refuses)
    with pytest.raises(RuntimeError, match=r"no operands for mma\.sync.*0x47 is no code of e3m2"):
        compare(FP8, right(FP8))


@pytest.fixture
def no_grid(monkeypatch):
    """What no row and no discovery explains is taken for unexplained, without a search of all parameters."""
    monkeypatch.setattr(explain, "_grid", lambda *_: ())


@pytest.mark.usefixtures("no_grid")
def test_one_wrong_place_is_named():
    case = compare(FP8, with_one_wrong_place(FP8))
    assert case.unexplained
    assert case.difference.smallest == (
        "D[3, 5] of K = 32, all other operands zero",
        "C = 0x00000000 (0)",
    )


def test_a_difference_is_reduced_to_its_few_terms():
    """Products 1 x 1 and 2^-13 x 1 on a core that keeps 12 bits: everything else goes."""
    rng = np.random.default_rng(3)
    one, small = 0x38, 0x01  # 2^-9 of E4M3, times 2^-4
    a, b = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    a[:32], b[:32] = rng.integers(8, 40, 32), rng.integers(8, 40, 32)
    a[40], b[40], a[47], b[47], a[50], b[50] = one, one, small, 0x18, 0xB8, one
    pair = DeviceAndModel(right(WGMMA, fraction=12), right(WGMMA), WGMMA)
    found, alone = smallest(pair, [Dot(tuple(a.tolist()), tuple(b.tolist()), 0, (9, 2))])
    assert alone
    assert len(found.a) == 32
    assert sum(1 for x, y in zip(found.a, found.b, strict=True) if x or y) <= 3
    ((got, want),) = pair.ask([found])
    assert got != want


def test_a_c_that_has_no_part_in_it_becomes_zero():
    pair = DeviceAndModel(with_one_wrong_place(FP8), right(FP8), FP8)
    found, alone = smallest(pair, [Dot((0x38,) * 64, (0x38,) * 64, 0x40490FDB, (3, 5))])
    assert alone
    assert found == Dot((0,) * 32, (0,) * 32, 0, (3, 5))


def test_a_term_with_one_zero_factor_is_shown():
    """NaN x 0 is what makes the result NaN."""
    pair = DeviceAndModel(with_other_nan(FP8), right(FP8), FP8)
    shown = difference(pair, [Dot((0x7F, *(0,) * 31), (0,) * 32, 0, (0, 0))], ("unexplained", False))
    assert shown.smallest[1] == "k = 0: 0x7f (nan) x 0x00 (0)"


@pytest.mark.usefixtures("no_grid")
def test_a_difference_that_needs_its_neighbours_says_so():
    model = right(FP8)

    def leaks(a, b, c):
        """Row 1 of A spills into row 0 of D."""
        d = model(a, b, c).copy()
        d[:, 0] ^= (a[:, 1].any(axis=-1) & a[:, 0].any(axis=-1)).astype(d.dtype)[:, None]
        return d

    case = compare(FP8, leaks)
    assert case.unexplained
    assert (
        case.difference.smallest[-1] == "it differs next to other rows and columns only: each dot product alone agrees"
    )
    assert len(case.difference.smallest) <= 11


# ---- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", sorted(entry for entry, row in ROWS.items() if row.n == 8))
def test_every_instruction_holds_its_operands_where_the_model_says(entry):
    case = product_case(ROWS[entry], right(ROWS[entry]))
    assert (case.status, case.differing) == (PASS, 0)


STARTS = "starts of wgmma operands, e4m3.K.K"


def starts_case(device):
    return next(task for task in tasks(device) if task.name == STARTS).run()


def test_operands_begin_where_descriptors_say():
    case = starts_case(refsim.device.open("sim", "sm_90a"))
    assert (case.status, case.differing, case.words) == (PASS, 0, 256 * 64 * 64)
    assert STARTS not in {task.name for task in tasks(refsim.device.open("sim", "sm_100a"))}


def test_an_operand_that_begins_elsewhere_is_reported(monkeypatch):
    """A device that adds base_offset where the model subtracts it: the descriptors of the first product are named."""
    right = StartForm.predicted

    def added(form, words):
        base = words >> np.uint64(49) & np.uint64(7)
        turned = words & ~np.uint64(7 << 49) | (np.uint64(8) - base & np.uint64(7)) << np.uint64(49)
        return right(form, turned)

    monkeypatch.setattr(StartForm, "predicted", added)
    case = starts_case(refsim.device.open("sim", "sm_90a"))
    assert case.status == DIFFERS
    assert 0 < case.differing < case.words
    assert case.difference.smallest[0].startswith("descriptors 0x")


def swapped(side, axis, order):
    def device(instruction):
        model = right(instruction)

        def products(a, b, c):
            given = {"a": a, "b": b, "c": c}
            if given[side] is not None:
                given[side] = np.take(given[side], order(given[side].shape[axis]), axis)
            return model(given["a"], given["b"], given["c"])

        return products

    return device


def neighbours(size):
    return np.arange(size) ^ 1


@pytest.mark.parametrize("instruction", [FP8, BF16, INTEGER, WGMMA], ids=lambda row: row.entry)
def test_the_single_ones_visit_every_place(instruction):
    sides = dict(trials(np.random.default_rng(1), instruction))
    for place, label in enumerate("ab"):
        hot = sides[label][place] != 0
        assert (hot.sum(axis=-1) == 1).all()
        assert hot.any(axis=0).all()


@pytest.mark.parametrize("instruction", [FP8, BF16, INTEGER, WGMMA], ids=lambda row: row.entry)
@pytest.mark.parametrize(
    ("side", "axis", "said"),
    [
        ("a", 1, "A[0, 0] = 1, B[0, 0] = 1"),
        ("a", 2, "A[0, 0] = 1, B[0, 0] = 1"),
        ("b", 1, "A[0, 0] = 1, B[0, 0] = 1"),
        ("b", 2, "A[0, 0] = 1, B[0, 0] = 1"),
        ("c", 1, "C[0, 0] = 1, all products zero"),
        ("c", 2, "C[0, 0] = 1, all products zero"),
    ],
)
def test_swapped_places_are_caught_and_shown_with_a_single_one(instruction, side, axis, said):
    case = product_case(instruction, swapped(side, axis, neighbours)(instruction))
    assert case.unexplained
    assert case.difference.smallest == (said,)
    assert case.difference.got != case.difference.want


def test_k_renamed_alike_in_a_and_b_is_the_same_product():
    model = right(FP8)
    order = np.arange(32) ^ 4
    case = product_case(FP8, lambda a, b, c: model(a[..., order], b[..., order], c))
    assert case.status == PASS


def test_a_matrix_image_depends_on_the_name():
    slots = np.arange(32, dtype=np.uint32)
    images = [matrix_image(f"ldmatrix.m8n8.x4.b16{trans}", slots, 256) for trans in ("", ".trans")]
    assert images[0].size == images[1].size == 256
    assert not np.array_equal(*images)


# ---- discovery -------------------------------------------------------------------------------------------------------


def test_discovery_agrees_with_the_row_and_reproduces_the_device():
    case = discover_case(WGMMA, WGMMA.profile("sm_90a"), right(WGMMA))
    assert case.status == PASS
    assert case.parameters["fraction"] == 13
    assert "as its row says" in case.note


def test_discovery_that_contradicts_the_row_is_a_difference():
    row = WGMMA.profile("sm_90a")
    case = discover_case(WGMMA, row, right(WGMMA, fraction=12))
    assert case.unexplained
    assert case.difference.smallest == ("fraction 12, not 13",)
    assert "F = 12" in case.difference.got
    assert "F = 13" in case.difference.want
    ada = discover_case(WGMMA, row, model_of(profile("sm_89", "mma.sync", "e4m3", "e4m3", "f32"), WGMMA))
    assert (ada.status, ada.unexplained) == (DIFFERS, False)
    assert ada.difference.explanation.startswith("matches sm_89 mma.sync")


def test_an_instruction_without_a_row_is_discovered():
    case = discover_case(BF16, None, right(BF16, fraction=22, zero_exponent=-130, length=8))
    assert case.status == PASS
    assert case.parameters == {
        "length": 8,
        "order": "ascending",
        "c_enters": "early",
        "fraction": 22,
        "rounding": "rz-f32",
        "zero_exponent": -130,
    }


def test_discovery_says_when_its_parameters_do_not_reproduce_the_device():
    case = discover_case(FP8, None, with_one_wrong_place(FP8))
    assert case.status == DIFFERS
    assert "does not reproduce" in case.note


def test_discovery_of_integers_is_refused():
    with pytest.raises(RefsimError, match="not probed"):
        discover_case(INTEGER, None, right(INTEGER))


def test_a_target_of_which_nothing_is_known_has_no_row():
    assert row_of(FP8, "sm_90a") is not None
    assert row_of(FP8, "sm_70") is None
    assert row_of(FP8, "sm_999a") is None
