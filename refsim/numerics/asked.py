"""What a user asks for by the arguments of `mma`: a call of a chip's instruction, with a dense A or a sparse one."""

from numpy.typing import ArrayLike

from refsim.formats import E4M3, ElementType, Format, element_named
from refsim.numerics.calls import Arguments, Call, arguments_of, fitted
from refsim.numerics.profiles import profile
from refsim.numerics.rows import Unit
from refsim.numerics.sparse import SparseCall, sparse_call, sparse_profile


def call_of(
    arguments: Arguments,
    *,
    unit: Unit,
    d_format: str | ElementType = "f32",
    target: str = "sm_90a",
    k: int | None = None,
) -> Call:
    """The call of a chip's instruction; raises RefsimError where there is none, or where its arguments do not fit."""
    row = profile(target, unit, arguments.a_format, arguments.b_format, element_named(d_format), k)
    return fitted(arguments, row, max(row.k) if k is None else int(k))


def call_asked_for(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    unit: Unit = "wgmma",
    a_format: str | ElementType | None = None,
    b_format: str | ElementType | None = None,
    d_format: str | ElementType = "f32",
    target: str = "sm_90a",
    a_scale: ArrayLike | None = None,
    b_scale: ArrayLike | None = None,
    scale_format: str | Format | None = None,
    k: int | None = None,
    negate_a: bool = False,
    negate_b: bool = False,
    metadata: ArrayLike | None = None,
) -> Call | SparseCall:
    """The call that a user means by the arguments of `mma`, where operands that do not say their format are E4M3."""
    arguments = arguments_of(
        a,
        b,
        c,
        a_format=a_format,
        b_format=b_format,
        a_scale=a_scale,
        b_scale=b_scale,
        scale_format=scale_format,
        negate_a=negate_a,
        negate_b=negate_b,
        default=E4M3,
    )
    types = arguments.a_format, arguments.b_format, element_named(d_format)
    if metadata is not None:
        row = sparse_profile(target, unit, *types, k)
        return sparse_call(arguments, metadata, row, max(row.k) if k is None else int(k) // 2)
    return call_of(arguments, unit=unit, d_format=d_format, target=target, k=k)
