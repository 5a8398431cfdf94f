"""refsim.reference.operands: classes hold what their names say, in every format; landmarks stand where the format changes."""

import numpy as np
import pytest

from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.formats import E4M3, F32, FORMATS, TF32, Format
from refsim.reference.operands import CLASSES, at_exponents, cancel, composed, drawn, landmarks, special_codes

FLOATS = [row for row in FORMATS if row.exponent_bits and not row.twos_complement]


@pytest.mark.parametrize("kind", CLASSES)
def test_codes_of_every_class_are_codes_of_the_format(kind: str) -> None:
    for format in FLOATS:
        codes = drawn(format, kind, (3, 64), np.random.default_rng(1))
        assert (codes.dtype, codes.shape) == (format.code_dtype, (3, 64)), format
        assert int(codes.max()) < format.code_limit, format
        assert np.array_equal(codes, drawn(format, kind, (3, 64), np.random.default_rng(1))), format


@pytest.mark.parametrize("format", [E4M3, TF32, F32], ids=str)
def test_classes_hold_what_their_names_say(format: Format) -> None:
    def values(kind: str) -> np.ndarray:
        return np.concatenate(
            [np.abs(decode(drawn(format, kind, (256,), np.random.default_rng(seed)), format)) for seed in range(9)]
        )

    assert not values("zeros").any()
    assert np.mean(values("sparse") == 0) > 0.8
    assert (values("subnormal") < format.min_normal).all()
    assert ((values("moderate") >= 2.0**-3) & (values("moderate") < 8)).all()
    assert (values("largest") >= format.max_value / 8).all()
    assert not np.isfinite(values("specials")).all()
    assert np.isfinite(values("gaussian")).all()
    assert np.mean(values("gaussian") >= 0.5) > 0.6


def test_classes_differ_from_seed_to_seed() -> None:
    for kind in CLASSES:
        arrays = {drawn(F32, kind, (64,), np.random.default_rng(seed)).tobytes() for seed in range(4)}
        assert len(arrays) > 1, kind


def test_a_class_that_is_not_there_is_refused() -> None:
    with pytest.raises(RefsimError, match="no class of operands"):
        drawn(E4M3, "cancel", (1,), np.random.default_rng(0))


def test_the_second_half_takes_the_first_away() -> None:
    random = np.random.default_rng(3)
    a, b = (drawn(E4M3, "cancelling", (2, 10), random) for _ in range(2))
    cancel(a, b, E4M3)
    assert (decode(a, E4M3) * decode(b, E4M3)).sum(-1).tolist() == [0, 0]


def test_codes_by_their_fields() -> None:
    assert composed(E4M3, np.array(1), np.array(7), np.array(0xFF)).tolist() == 0xBF
    assert composed(TF32, np.array(0), np.array(127), np.array(1 << 13)).tolist() == 0x3F802000
    exponents = np.array([-300, -6, 0, 8, 300])
    values = np.abs(decode(at_exponents(E4M3, exponents, np.random.default_rng(0)), E4M3))
    assert values[0] < 2.0**-6
    assert np.floor(np.log2(values[1:])).tolist() == [-6, 0, 7, 7]


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_landmarks_stand_where_values_say(format: Format) -> None:
    known = {
        name: decode(np.array([code << format.padding_bits], format.code_dtype), format)[0]
        for name, code in landmarks(format).items()
    }
    ones = {
        name: int(encode(np.full(1, value), format)[0]) >> format.padding_bits
        for name, value in (("one", 1.0), ("half", 0.5))
    }
    assert ones.items() <= landmarks(format).items()
    assert known["largest"] == format.max_value
    if format.has_infinity:
        assert np.isinf(known["infinity"])
        assert np.isnan([known["signalling"], known["quiet"]]).all()


def test_special_codes_have_both_signs_and_each_once() -> None:
    codes = special_codes("e4m3")
    assert set(codes) == {
        code | sign for code in (0, 1, 7, 8, 0x30, 0x38, 0x39, 0x7D, 0x7E, 0x7F) for sign in (0, 0x80)
    }
    assert len(codes) == 20
    assert special_codes("ue4m3", ("one", "top")) == (0x38, 0x7F)
