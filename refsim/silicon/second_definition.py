"""The model's products against a slow second definition, for instructions of any target."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import ElementType, element_named
from refsim.numerics.multiply import call_asked_for
from refsim.numerics.rows import Profile
from refsim.numerics.sparse import decompress, sparsity_of
from refsim.reference.tensor_cores import Factors, dot_product
from refsim.silicon.drawn_products import DRAWN_ROWS, DrawnProducts
from refsim.targets import target_named


def differing(row: Profile, target: str, types: tuple[str, str, str], k: int, *, sparse: bool) -> NDArray[np.bool_]:
    """Return which drawn dot products differ between the model and the second definition, for every type of scale.

    `row` has the unit and its scales; `k` is the instruction's own, elements of the whole A.
    """
    found = [_of_scale(row, target, types, k, scale, block, sparse) for scale, block in row.scales or ((None, 0),)]
    return np.concatenate(found)


def _of_scale(
    row: Profile, target: str, types: tuple[str, str, str], k: int, scale: ElementType | None, block: int, sparse: bool
) -> NDArray[np.bool_]:
    """Return the differing dot products of one type of scale."""
    formats = (element_named(types[0]), element_named(types[1]), element_named(types[2]))
    stored = k // 2 if sparse else k
    draw = DrawnProducts(formats, stored, block)
    given: dict[str, Any] = dict(zip(("a_format", "b_format", "d_format"), types, strict=True))
    scales = draw.scales(scale.name) if scale else None
    if scale and scales:
        given |= {"a_scale": scales[0][:, None], "b_scale": scales[1][:, None], "scale_format": scale.name}
    b = draw.b
    if sparse:
        sparsity = sparsity_of(formats[0], row.unit)
        runs = 2 * np.arange(sparsity.kept // sparsity.together)[:, None] % (sparsity.group // sparsity.together)
        places = (runs * sparsity.together + np.arange(sparsity.together)).ravel()
        metadata = np.broadcast_to(np.resize(places, stored).astype(np.uint8), draw.a.shape)
        b, given["metadata"] = decompress(draw.b, metadata, types[1], unit=row.unit), metadata[:, None]
    kind = formats[2].array_dtype
    assert kind is not None
    c = draw.c.view(kind)[:, None, None]
    got = call_asked_for(draw.a[:, None], b[:, None], c, unit=row.unit, target=target, k=k, **given).result()
    want = []
    for at in range(DRAWN_ROWS):
        of_row = tuple(each[at].tolist() for each in scales) if scales else ((), ())
        words = draw.a[at].tolist(), draw.b[at].tolist(), int(draw.c[at])
        operands = Factors(*words, types, (of_row[0], of_row[1]), scale.name if scale else "")
        want.append(dot_product(operands, target_named(target).number, row.unit, stored))
    codes = np.ascontiguousarray(got).reshape(-1).view(formats[2].code_dtype)
    return np.asarray(codes != np.array(want, codes.dtype))
