"""Line 0 of a `.loc` is no line: code that a compiler made has the place of its call, or a file without a number."""

import pytest

from refsim.ptx.text.parser import parse

TEXT = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k()
{{
  .reg .b32 %r1;
  .loc 1 7 3
  {loc}
  mov.u32 %r1, 1;
  ret;
}}
.file 1 "mine.cu"
.file 2 "helpers.h"
"""


@pytest.mark.parametrize(
    ("loc", "place"),
    [
        (".loc 1 0 3", "mine.cu"),
        (".loc 2 0 0, function_name $x, inlined_at 1 7 3", "mine.cu:7"),
        (".loc 2 5 0, function_name $x, inlined_at 1 7 3", "helpers.h:5, called at mine.cu:7"),
    ],
)
def test_line_0_is_never_shown(loc: str, place: str) -> None:
    statement = parse(TEXT.format(loc=loc)).functions["k"].statements[0]
    assert str(statement.location) == place
