"""One output of a sparse product, over Python integers: the whole row of A, in which most elements are absent."""

from collections.abc import Sequence

from refsim.formats import ElementType, Format
from refsim.numerics.dot.definition import dot_product
from refsim.numerics.rows import Profile


def expanded(stored: Sequence[int], positions: Sequence[int], kept: int, group: int) -> list[int | None]:
    """Return the row as a dense row; None is an absent element. ([7, 8], [2, 0], 2, 4) gives [8, None, 7, None]."""
    row: list[int | None] = [None] * (len(stored) // kept * group)
    for number, (code, position) in enumerate(zip(stored, positions, strict=True)):
        row[number // kept * group + position] = code
    return row


def sparse_dot_product(
    row: Sequence[int | None],
    b: Sequence[int],
    c: int,
    profile: Profile,
    k: int,
    *,
    a_format: str | ElementType,
    b_format: str | ElementType,
    a_scale: Sequence[int] = (),
    b_scale: Sequence[int] = (),
    scale_format: str | Format | None = None,
) -> int:
    """Return the code of c plus the sum of row[i] b[i] over the present i; an instruction takes `k` elements.

    Both operands of an absent product are dropped before they are decoded. The others, in ascending i, are added as
    `profile` adds the products of one instruction. Scales belong to equal parts of the row.
    """
    blocks = len(a_scale) * k // len(row)
    for number, start in enumerate(range(0, len(row), k)):
        there = [i for i in range(start, start + k) if row[i] is not None]
        a = [code for code in row[start : start + k] if code is not None]
        part = slice(number * blocks, number * blocks + blocks)
        c = dot_product(
            a,
            [b[i] for i in there],
            c,
            profile,
            len(a),
            a_format=a_format,
            b_format=b_format,
            a_scale=a_scale[part],
            b_scale=b_scale[part],
            scale_format=scale_format,
        ).result
    return c
