"""Two recipes on one tensor: blocks that differ in scale, and elements that differ under equal scales."""

from typing import TYPE_CHECKING, Any

from refsim.cli.answers.anatomy import as_bits
from refsim.cli.delivery import AGREED, FAILED, Answer
from refsim.errors import counted
from refsim.render import Column, Document, Table, Wording, number
from refsim.scaling.blocks import Blocks, quantize

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from refsim.files import Stored
    from refsim.render import Cell
    from refsim.scaling import BlockFormat, Recipe


def differing(stored: "Stored", row: "BlockFormat", recipe: "Recipe", other: "Recipe") -> Answer:
    """Return each kind of difference: its number of blocks and elements, and the first block."""

    one, two = (quantize(stored.codes, row, recipe=each, input_format=stored.format) for each in (recipe, other))
    codes = (one.codes != two.codes).reshape(-1, row.width).sum(axis=1)
    scales = (one.scales != two.scales).reshape(-1)
    title = f"{row}: {recipe} and {other}"
    kinds = (("another scale", scales), ("the same scale", ~scales & (codes > 0)))
    rows = tuple(_cells(what, mask, codes, stored, one, two) for what, mask in kinds if mask.any())
    errors = _errors(stored, one, two)
    sources = tuple(dict.fromkeys((recipe.source, other.source)))
    if not rows:
        line = f"{recipe} and {other} agree on all {scales.size} blocks"
        facts = {
            "format": row.name,
            "recipes": [recipe.name, other.name],
            "blocks": int(scales.size),
            "differences": [],
        }
        return Answer(Document((Wording((line,), facts),), title, sources), AGREED)
    columns = (
        Column("what", strong=True),
        Column("blocks", align="right"),
        Column("elements", align="right"),
        Column("row", label="first", align="right", drop=1),
        Column("block", label=" ", gap=1, drop=1),
        Column("scale", label=str(recipe), gap=3),
        Column("other_scale", label=str(other)),
        Column("value", drop=2),
        Column("code", label=str(recipe), drop=2),
        Column("other_code", label=str(other), drop=2),
    )
    lines = [
        f"{int(scales.sum())} of {scales.size} scales and {int(codes.sum())} of {counted(one.codes.size, 'element')} differ"
    ]
    lines += [f"{name}: root of the mean squared error {error:.6g}" for name, error in errors.items()]
    facts = {"format": row.name, "blocks": int(scales.size), "elements": int(one.codes.size), "errors": errors}
    tables = (Table(columns, rows, key="differences"), Wording(tuple(lines), facts))
    return Answer(Document(tables, title, sources), FAILED)


def _cells(
    what: str, mask: "NDArray[np.bool_]", codes: "NDArray[Any]", stored: "Stored", one: Blocks, two: Blocks
) -> "tuple[Cell, ...]":
    """Return the cells of one kind of difference; `mask` marks its blocks, `codes` counts differing elements."""
    import numpy as np

    from refsim.conversions import decode

    first, width = int(np.flatnonzero(mask)[0]), one.format.width
    across = one.scales.shape[-1]
    mine, yours = (each.codes.reshape(-1, width)[first] for each in (one, two))
    at = int(np.argmax(mine != yours))
    value = float(decode(stored.codes, stored.format).reshape(-1, width)[first, at])
    return (
        what,
        int(mask.sum()),
        int(codes[mask].sum()),
        first // across,
        first % across,
        as_bits(int(one.scales.reshape(-1)[first]), one.format.scale),
        as_bits(int(two.scales.reshape(-1)[first]), one.format.scale),
        number(value),
        as_bits(int(mine[at]), one.format.element),
        as_bits(int(yours[at]), one.format.element),
    )


def _errors(stored: "Stored", one: Blocks, two: Blocks) -> dict[str, float]:
    import numpy as np

    from refsim.conversions import decode

    x = decode(stored.codes, stored.format)
    with np.errstate(all="ignore"):
        return {
            str(each.recipe): float(np.sqrt(np.mean((each.dequantize(np.float64) - x) ** 2))) for each in (one, two)
        }
