"""The probe of the copy engine's arithmetic, on the simulator: sums rounded once, loads through a map of tf32 by encode."""

import numpy as np
import pytest

import refsim
from refsim.formats.rows import F64
from refsim.silicon.copy_arithmetic import COPY_FORMS, WORDS_OF_A_FORM, CopyForm

FORM = {form.name: form for form in COPY_FORMS}


def left_by(form: CopyForm) -> np.ndarray:
    with refsim.device.open("sim", "sm_90a").launcher(form.code) as launcher:
        return form.run(launcher)


def values(form: CopyForm, words: np.ndarray) -> np.ndarray:
    return (
        words.view(np.float64) if form.holds is F64 else np.asarray(refsim.decode(words, form.holds.name), np.float64)
    )


def rounded_sum(form: CopyForm, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sums as words, each rounded once: float64 rounds to odd first, and has more than twice the bits of the others."""
    with np.errstate(all="ignore"):
        total = a + b
        if form.holds is F64:
            return total.view(np.uint64)
        back = total - a
        missing = (a - (total - back)) + (b - back)
        bits = total.view(np.uint64)
        even = np.isfinite(total) & (missing != 0) & (bits & 1 == 0)
        odd = np.where(np.signbit(missing) == np.signbit(total), bits | 1, bits - 1)
    return np.asarray(refsim.encode(np.where(even, odd, bits).view(np.float64), form.holds.name))


@pytest.mark.parametrize("name", [name for name in FORM if " add" in name])
def test_sums_are_rounded_once(name: str) -> None:
    form = FORM[name]
    held, given = form.operands()
    want = rounded_sum(form, values(form, held), values(form, given))
    got = left_by(form)
    numbers = ~np.isnan(values(form, want))
    assert numbers.sum() > WORDS_OF_A_FORM // 2
    differs = got != want
    if name.endswith("_ftz"):
        field = form.holds.mantissa_bits
        differs &= ~np.logical_or.reduce([(each << 1 >> field + 1 == 0) for each in (held, given, want)])
    assert not (differs & numbers).any()


@pytest.mark.parametrize("name", [name for name in FORM if name.startswith(("load", "store"))])
def test_only_a_load_through_a_map_of_tf32_changes_a_word(name: str) -> None:
    form = FORM[name]
    held, given = form.operands()
    if "load tf" not in name:
        assert np.array_equal(left_by(form), held if name.startswith("load") else given)
        return
    with np.errstate(all="ignore"):
        numbers = ~np.isnan(held.view(np.float32))
        want = refsim.decode(refsim.encode(held.view(np.float32), "tf32"), "tf32")
    assert np.array_equal(left_by(form)[numbers], np.asarray(want, np.float32).view(np.uint32)[numbers])


def test_operands_hold_every_pair_of_special_values_and_near_exponents() -> None:
    for form in COPY_FORMS:
        held, given = form.operands()
        assert (len(held), len(given)) == (WORDS_OF_A_FORM, WORDS_OF_A_FORM)
        fmt = form.holds
        top = np.uint64((1 << fmt.exponent_bits) - 1)
        exponents = [words.astype(np.uint64) >> np.uint64(fmt.mantissa_bits) & top for words in (held, given)]
        near = np.abs(exponents[0].astype(np.int64) - exponents[1].astype(np.int64)) <= fmt.mantissa_bits + 3
        assert 1500 < near.sum() < WORDS_OF_A_FORM
        specials = {int(word) & ~(1 << fmt.bits - 1) for word in held}
        assert {0, 1, int(top) << fmt.mantissa_bits} <= specials
