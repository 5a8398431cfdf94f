"""What the tensor cores of an H200 returned, replayed bit for bit against the model, and what the words alone say.

Of every instruction three things are stored: the first 64 words of every cell (class of operands x class of C), one word
for every case of every feature, and digests of all words. Every profile replays the words. Of the digests quick replays a
chunk of every third instruction, ci one of each, night all of them.
"""

from collections import Counter
from functools import cache

import numpy as np
import pytest

from refsim import decode
from refsim.bringup.tensor_cores import KERNEL_FILE, instruction_named, instructions
from refsim.device.kernel_sources import read_unit
from refsim.formats import format_named
from refsim.kernel_code import KernelCode
from refsim.numerics.methods import BYTE_PAIRS, LATE, RZ_E8M13
from refsim.numerics.profiles import MEASURED_WORDS
from refsim.silicon.tensor_features import feature_words, negated
from refsim.silicon.tensor_features import features as asked_of_shape
from refsim.silicon.tensor_probe import cells, chunk_digest, chunks_of, sample_words, shape_of
from refsim.silicon.vectors import recordings, sidecar

RECORDED = recordings("numerics")
features = cache(asked_of_shape)
NAMES = sorted(RECORDED)
FLOATS = [name for name in NAMES if RECORDED[name].facts["d_format"] not in ("s32", "f64")]
WGMMA = [name for name in FLOATS if name.startswith("wgmma")]
ASKED = [name for name in FLOATS if "feature order" in RECORDED[name].arrays]
STAYS_WIDE = [name for name in ASKED if RECORDED[name].facts["d_format"] == "f32"]


def row_of(name):
    """The profile that the model has for an instruction."""
    return instruction_named(name).profile("sm_90a")


def asked_of(name):
    """The features of an instruction, as the recorder asked them."""
    shape = shape_of(RECORDED[name])
    wanted = {**features(shape), **(negated(shape) if name in WGMMA else {})}
    stored = [key.removeprefix("feature ") for key in RECORDED[name].arrays if key.startswith("feature ")]
    assert stored == [] or sorted(stored) == sorted(wanted)
    return {key: wanted[key] for key in stored}


def words_of(name, feature):
    return RECORDED[name].arrays[f"feature {feature}"]


def values_of(name, feature):
    return decode(words_of(name, feature), RECORDED[name].facts["d_format"])


def spelled(labels, got, want, limit=4):
    """The first differing words: which, what the model says, what the H200 gave."""
    rows = np.argwhere(got != want)
    return [f"{labels(*row)}: {int(got[tuple(row)]):#x}, H200 {int(want[tuple(row)]):#x}" for row in rows[:limit]]


# ---- replay ----------------------------------------------------------------------------------------------------------


ALIKE = pytest.mark.ci("its stored words are those of N = 8, which is compared and replayed in every run")
OF_EVERY_N = [pytest.param(name, marks=ALIKE) if ".m64n64k" in name or ".m64n256k" in name else name for name in NAMES]


@pytest.mark.parametrize("name", OF_EVERY_N)
def test_the_model_returns_the_stored_words_of_every_cell(name):
    shape = shape_of(RECORDED[name])
    got, want = sample_words(shape, cells(shape)), RECORDED[name].arrays["sample"]
    assert spelled(lambda cell, place: f"{cells(shape)[cell]} word {place}", got, want) == []


@pytest.mark.parametrize("name", [name for name in NAMES if len(RECORDED[name].arrays) > 2])
def test_the_model_returns_the_word_of_every_case(name):
    shape = shape_of(RECORDED[name])
    for key, feature in asked_of(name).items():
        got = feature_words(shape, feature)
        assert spelled(lambda case, key=key: f"{key} {case}", got, words_of(name, key)) == []


RARER = pytest.mark.ci("a chunk of every third instruction is replayed in every run; one of f64 takes seconds")
DIGESTED = NAMES[::3]
CHUNKED = [name if name in DIGESTED and ".f64" not in name else pytest.param(name, marks=RARER) for name in NAMES]


@pytest.mark.parametrize("name", CHUNKED)
def test_the_model_has_the_digests_of_all_words(name, refsim_profile):
    shape = shape_of(RECORDED[name])
    digests = RECORDED[name].arrays["chunk_digests"]
    assert digests.shape == (RECORDED[name].facts["passes"], chunks_of(shape))
    places = [(number, chunk) for number in range(digests.shape[0]) for chunk in range(chunks_of(shape))]
    for number, chunk in places if refsim_profile == "night" else [places[NAMES.index(name) * 5 % len(places)]]:
        got = chunk_digest(shape, number, chunk)
        assert got == int(digests[number, chunk]), f"{name}, pass {number}, cells {cells(shape)[4 * chunk :][:4]}"


# ---- what the words say ----------------------------------------------------------------------------------------------


def test_every_instruction_of_the_probe_file_is_recorded():
    assert sorted(row.name for row in instructions("sm_90a")) == NAMES


def test_the_profiles_count_the_words_that_were_recorded():
    words = Counter()
    for name, recording in RECORDED.items():
        row = row_of(name)
        words[row.unit, row.a_formats[0], row.d_format] += recording.facts["words"]
    assert words == MEASURED_WORDS


def test_the_probe_file_is_still_the_one_that_ran():
    facts = sidecar("numerics")
    assert read_unit(KernelCode(file=KERNEL_FILE)).sha256 == facts["source_sha256"]
    assert facts["device"] == "NVIDIA H200"


def fraction_kept(name, feature):
    """The largest f at which U x 2^-f came through beside U and -U, and the largest that D can hold.

    Of three products the third is at k = 4, which every order puts into the step of k = 0 and 1 (at 2 where k is 4).
    """
    shape = shape_of(RECORDED[name])
    asked = features(shape)[feature]
    products = decode(asked.a, shape.a_format) * decode(asked.b, shape.b_format)
    small = np.abs(decode(asked.c, shape.d_format) if feature == "c_precision" else products[:, min(4, shape.k - 2)])
    beside = small > format_named(shape.d_format).quantum / 2
    f = np.log2(products[beside, 0] / np.exp2(np.floor(np.log2(small[beside])))).astype(int)
    came = values_of(name, feature)[beside] != 0
    return int(f[came].max()), int(f.max())


@pytest.mark.parametrize("name", ASKED)
def test_products_keep_as_many_bits_as_the_profile_says(name):
    """Where the format reaches that far down: beside 2^16 the smallest product of E4M3 is 2^-18."""
    kept, asked = fraction_kept(name, "three_products")
    assert kept == min(row_of(name).fraction, asked)
    assert asked > row_of(name).fraction


@pytest.mark.parametrize("name", ASKED)
def test_c_enters_where_the_profile_says(name):
    """Early: what C has below the fraction is lost. Late: all of C comes through, down to its smallest number."""
    kept, asked = fraction_kept(name, "c_precision")
    row = row_of(name)
    assert kept == (asked if row.c_enters == LATE else min(row.fraction, asked))


@pytest.mark.parametrize("name", ASKED)
def test_the_order_of_products_matters_between_steps_alone(name):
    if len(row_of(name).steps(shape_of(RECORDED[name]).k)) == 1:
        for feature in ("permuted", "permuted_zero"):
            assert [np.unique(words).size for words in words_of(name, feature).reshape(4, -1)] == [1, 1, 1, 1]
    chained = [np.unique(words).size for words in words_of(name, "permuted_chain").reshape(4, -1)]
    assert max(chained) > 1


@pytest.mark.parametrize("name", STAYS_WIDE)
def test_the_products_of_a_step_are_those_of_the_profile(name):
    """U at i and -U at j leave only what the steps after the later of the two add."""
    shape = shape_of(RECORDED[name])
    asked = features(shape)["order"]
    a = decode(asked.a, shape.a_format)
    i, j = a.argmax(axis=1), a.argmin(axis=1)
    steps = row_of(name).steps(2 * shape.k) if row_of(name).order != BYTE_PAIRS else row_of(name).steps(shape.k)
    step_of = {place: number for number, places in enumerate(steps) for place in places}
    first = (i < shape.k) & (j < shape.k)
    later = [max(step_of[x], step_of[y]) for x, y in zip(i[first].tolist(), j[first].tolist(), strict=True)]
    groups = {}
    for step, word in zip(later, words_of(name, "order")[first].tolist(), strict=True):
        groups.setdefault(step, set()).add(word)
    assert {len(words) for words in groups.values()} == {1}
    assert len(set.union(*groups.values())) == len(groups) == len(row_of(name).steps(shape.k))


@pytest.mark.parametrize("name", ASKED)
def test_scale_d_0_is_a_c_of_plus_zero(name):
    """For mma.sync, which has no scale-d, this compares a C of zeros with itself: the two launches agree."""
    assert np.array_equal(words_of(name, "permuted_scale_d"), words_of(name, "permuted_zero"))


@pytest.mark.parametrize("name", [name for name in WGMMA if name in ASKED])
def test_a_negated_operand_is_an_operand_of_the_other_sign(name):
    for feature in ("specials", "permuted", "permuted_zero"):
        plain, a, b, both = (
            words_of(name, f"{feature}{suffix}") for suffix in ("", ".negated_a", ".negated_b", ".negated_ab")
        )
        assert np.array_equal(a, b)
        assert np.array_equal(plain, both)
    assert not np.array_equal(words_of(name, "permuted"), words_of(name, "permuted.negated_a"))
    sign = 1 << (8 * words_of(name, "permuted_zero").itemsize - 1)
    turned = words_of(name, "permuted_zero.negated_a") ^ words_of(name, "permuted_zero")
    assert set(np.unique(turned)) <= {0, sign}


@pytest.mark.parametrize("name", [name for name in NAMES if ".m64n8k" in name])
def test_n_does_not_matter(name):
    """The same rows of A and B at N = 8, 64 and 256 gave the same words."""
    for n in (64, 256):
        other = RECORDED[name.replace(".m64n8k", f".m64n{n}k")]
        assert np.array_equal(other.arrays["sample"], RECORDED[name].arrays["sample"])


@pytest.mark.parametrize("types", ["f32.f16.f16", "f16.f16.f16", "f32.bf16.bf16", "f32.tf32.tf32"])
def test_mma_sync_and_wgmma_agree(types):
    k = 8 if "tf32" in types else 16
    warp = RECORDED[f"mma.sync.aligned.m16n8k{k}.row.col.{types}.{types[:3]}"]
    group = RECORDED[f"wgmma.mma_async.sync.aligned.m64n8k{k}.{types}"]
    for key, words in warp.arrays.items():
        if key != "chunk_digests":
            assert np.array_equal(words, group.arrays[key]), key


def test_mma_sync_and_wgmma_of_fp8_do_not_agree():
    warp = RECORDED["mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"].arrays["sample"]
    group = RECORDED["wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3"].arrays["sample"]
    assert np.count_nonzero(warp != group) > warp.size // 3


@pytest.mark.parametrize("name", STAYS_WIDE)
def test_what_comes_through_of_c_beside_products_of_zeros(name):
    """All of it, or 13 bits and a quantum of 2^-139 with FP8 wgmma; zeros and what is cut to zero are +0."""
    c = features(shape_of(RECORDED[name]))["c_alone"].c
    kept = np.uint32(0xFFFFFC00 if row_of(name).rounding == RZ_E8M13 else 0xFFFFFFFF)
    want = np.where(c & 0x7FFFFFFF & kept == 0, 0, c & kept)
    want[np.isnan(c.view(np.float32))] = 0x7FFFFFFF
    assert np.array_equal(words_of(name, "c_alone"), want)
    assert np.count_nonzero((c & 0x7F800000 == 0) & (want != 0)) > 10  # subnormals among them


@pytest.mark.parametrize("name", FLOATS)
def test_no_result_is_minus_zero(name):
    minus = 1 << (16 if RECORDED[name].facts["d_format"] == "f16" else 32) - 1
    for key, words in RECORDED[name].arrays.items():
        if key != "chunk_digests":
            assert np.count_nonzero(words == minus) == 0, key


@pytest.mark.parametrize("name", FLOATS)
def test_there_is_one_nan(name):
    """0x7fffffff or 0x7fff, whatever went in."""
    arrays = RECORDED[name].arrays
    found = np.concatenate([words.ravel() for key, words in arrays.items() if key != "chunk_digests"])
    nans = Counter(found[np.isnan(decode(found, RECORDED[name].facts["d_format"]))].tolist())
    assert list(nans) == [0x7FFF if RECORDED[name].facts["d_format"] == "f16" else 0x7FFFFFFF]


def test_f64_keeps_a_nan():
    """The first NaN of B, C, A with its quiet bit set; an invalid product gives 0xfff8000000000000."""
    name = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"
    found = words_of(name, "specials")
    nans = np.unique(found[np.isnan(found.view(np.float64))])
    assert nans.tolist() == [0x7FF8000000000001, 0x7FFFFFFFFFFFFFFF, 0xFFF8000000000000]


@pytest.mark.parametrize("name", [name for name in ASKED if "tf32" in name])
def test_the_low_13_bits_of_tf32_are_not_read(name):
    """Words that agree above gave one result: a NaN of low bits alone is an infinity, a subnormal of them a zero."""
    asked = features(shape_of(RECORDED[name]))["low_bits"]
    seen = {}
    for a, b, d in zip(asked.a[:, 0] >> 13, asked.b[:, 0] >> 13, words_of(name, "low_bits"), strict=True):
        assert seen.setdefault((int(a), int(b)), int(d)) == int(d)
    assert seen[0x7F800001 >> 13, 0x3F800000 >> 13] == 0x7F800000
    assert seen[0x1FFF >> 13, 0x3F800000 >> 13] == 0


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_not_idle(name):
    """Every cell of products that are not all zero has words that differ from each other."""
    shape = shape_of(RECORDED[name])
    sample = RECORDED[name].arrays["sample"]
    assert sample.dtype == shape.d_format.code_dtype
    still = [cell for cell, words in zip(cells(shape), sample, strict=True) if np.unique(words).size == 1]
    assert [cell for cell in still if cell[0] != "sparse"] == []
