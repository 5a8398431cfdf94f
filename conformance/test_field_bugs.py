"""The page of field bugs is of its catalogue: every bug is shown with what must be said of it, and its right twin passes.

Some are run in every run; `ci` runs most anew and holds their sections to what is printed then, `night` also those whose suspects
are looked for at length.
"""

import pytest

from conformance.field_bugs.catalogue import NAMINGS, ROOT, read_bugs
from conformance.field_bugs.page import PAGE, page, section, sections_of

BUGS = {bug.id: bug for bug in read_bugs()}
OFTEN = ("partial_rows", "shared_memory_of_a_smaller_chip")
LONG = (
    "k_tail",
    "odd_width",
    "rounded_before_residual",
    "zero_residual",
    "unshuffled_weights",
    "fast_scale",
    "scale_of_scale",
    "overflow_is_nan",
    "scales_as_bf16",
    "padded_scales",
    "compressed_2_4",
    "accumulator_columns",
    "missing_wait",
)
"""Two to nine seconds each, of eighty that all sections take."""


def _when(id: str) -> pytest.MarkDecorator | tuple[()]:
    if id in LONG:
        return pytest.mark.night("its suspects are looked for at length")
    return () if id in OFTEN else pytest.mark.ci("others are run in every run")


def test_the_page_is_of_the_catalogue() -> None:
    text = PAGE.read_text("utf-8")
    assert sections_of(text).keys() == BUGS.keys()
    assert page(sections_of(text)) == text, "python -m conformance.field_bugs writes it anew"


@pytest.mark.parametrize("id", BUGS)
def test_the_page_shows_what_is_said_and_that_the_twin_passes(id: str) -> None:
    bug, shown = BUGS[id], sections_of(PAGE.read_text("utf-8"))[id]
    assert bug.finds
    assert bug.named in NAMINGS
    assert [text for text in bug.finds if text not in " ".join(shown.split(f"$ {bug.command}\n")[1].split())] == []
    assert bug.twin or bug.named == "right"
    if bug.twin:
        words = shown.split(f"$ {bug.twin}\n")[1].split("\n")[0].strip()
        assert words.startswith(("pass: ", "findings 0", "equal"))
    if bug.kernel.endswith(".cu"):
        assert (ROOT / bug.kernel).is_file()
        assert bug.changed() or bug.said or "stands in the" in (ROOT / bug.kernel).read_text("utf-8")


@pytest.mark.parametrize("id", [pytest.param(id, marks=_when(id)) for id in BUGS])
def test_a_section_is_what_is_printed_now(id: str) -> None:
    """`section` raises where the command does not fail, or the twin does."""
    assert sections_of(PAGE.read_text("utf-8"))[id].rstrip() == section(BUGS[id]).rstrip()
