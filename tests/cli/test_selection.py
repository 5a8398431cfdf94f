"""-k chooses names as pytest's -k does, and what is no expression is one error."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.cli.commands.verify import chooser
from refsim.errors import RefsimError

NAMES = ["fp8_amax", "fp8_quantize", "fp8_dequantize", "linear", "linear_fp8_weight"]


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("fp8", [0, 1, 2, 4]),
        ("FP8 and not linear", [0, 1, 2]),
        ("linear or amax", [0, 3, 4]),
        ("not fp8", [3]),
        ("not not linear", [3, 4]),
        ("fp8 and (amax or weight)", [0, 4]),
        ("fp8 and amax or weight", [0, 4]),
        ("amax or fp8 and weight", [0, 4]),
        ("(amax or fp8) and weight", [4]),
        ("not (amax or quantize)", [3, 4]),
        ("_quantize", [1]),
        ("  (( linear ))  ", [3, 4]),
        ("nothing", []),
        ("android", []),
    ],
)
def test_expressions_choose_as_they_read(expression: str, chosen: list[int]) -> None:
    wanted = chooser(expression)
    assert [at for at, name in enumerate(NAMES) if wanted(name)] == chosen


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "the end where a name is missing"),
        ("   ", "the end where a name is missing"),
        ("fp8 and", "the end where a name is missing"),
        ("and fp8", "'and' where a name is missing"),
        ("(fp8", "the end where ) is missing"),
        ("fp8)", "')' where and, or, or the end is due"),
        ("fp8 amax", "'amax' where and, or, or the end is due"),
        ("()", "')' where a name is missing"),
        ("fp8 & amax", "'&' is part of no name"),
        ("not", "the end where a name is missing"),
        ("__import__('os')", "')' where"),
        ("(" * 5000 + "a" + ")" * 5000, "10001 words"),
        ("(" * 60 + "a" + ")" * 60, "60 parentheses"),
        ("a or " * 5000 + "a", "10001 words"),
    ],
)
def test_what_is_no_expression_is_one_error(expression: str, says: str) -> None:
    with pytest.raises(RefsimError, match="bad-expression") as caught:
        chooser(expression)
    if "import" not in expression:
        assert says in caught.value.what
    assert len(str(caught.value)) < 500


@given(st.text(st.sampled_from("ab ()ort&n\x00dé"), max_size=40))
def test_any_text_is_an_expression_or_one_error(text: str) -> None:
    try:
        assert chooser(text)("ab") in (True, False)
    except RefsimError as error:
        assert error.code == "bad-expression"


WORDS = st.recursive(
    st.sampled_from(["a", "b", "ab", "c"]),
    lambda inner: st.one_of(
        inner.map(lambda part: f"not {part}"),
        inner.map(lambda part: f"({part})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
    ),
    max_leaves=8,
)


@given(WORDS, st.sampled_from(["a", "b", "ab", "abc", "x"]))
def test_precedence_is_pythons(expression: str, name: str) -> None:
    spelled = re.sub(r"\b(?!and\b|or\b|not\b)[a-c]+\b", lambda word: f"('{word[0]}' in name)", expression)
    assert chooser(expression)(name) == eval(spelled, {"name": name})
