"""refsim diffpolicy: the numbers that two libraries convert differently."""

from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from refsim.cli.answers.anatomy import as_bits, code_number
from refsim.cli.arguments import load_codes
from refsim.cli.delivery import AGREED, FAILED, Answer, answering
from refsim.cli.names import Name
from refsim.cli.options import Options, argument, option
from refsim.conversions import CONVERSIONS, decode, diff_policies
from refsim.errors import RefsimError, counted
from refsim.files import Stored
from refsim.formats import F32, Format
from refsim.render import Bits, Cell, Column, Document, Table, Wording, number
from refsim.scaling import BLOCK_FORMATS, BlockFormat, Recipe, recipe_named, recipes_of
from refsim.scaling.blocks import Blocks, quantize


def differing(stored: Stored, row: BlockFormat, recipe: Recipe, other: Recipe) -> Answer:
    """Return each kind of difference: its number of blocks and elements, and the first block."""

    one, two = (quantize(stored.codes, row, recipe=each, input_format=stored.format) for each in (recipe, other))
    codes = (one.codes != two.codes).reshape(-1, row.width).sum(axis=1)
    scales = (one.scales != two.scales).reshape(-1)
    title = f"{row}: {recipe} and {other}"
    kinds = (("another scale", scales), ("the same scale", ~scales & (codes > 0)))
    rows = tuple(_difference(what, mask, codes, stored, one, two) for what, mask in kinds if mask.any())
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


def _difference(
    what: str, mask: NDArray[np.bool_], codes: NDArray[Any], stored: Stored, one: Blocks, two: Blocks
) -> tuple[Cell, ...]:
    """Return the cells of one kind of difference; `mask` marks its blocks, `codes` counts differing elements."""

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


def _errors(stored: Stored, one: Blocks, two: Blocks) -> dict[str, float]:

    x = decode(stored.codes, stored.format)
    with np.errstate(all="ignore"):
        return {
            str(each.recipe): float(np.sqrt(np.mean((each.dequantize(np.float64) - x) ** 2))) for each in (one, two)
        }


POLICY_COLUMNS = (Column("policy", strong=True), Column("formats"), Column("sources", citation=True))


def policy_names() -> list[str]:
    """Return the policies of headers and libraries, in the order of their entries."""

    return list(dict.fromkeys(row.policy for row in CONVERSIONS.values() if row.policy))


class Subject(Name):
    """A number format, or a block format, whose policies are recipes."""

    def __init__(self) -> None:
        super().__init__("format", "refsim.formats:FORMATS", by="name", row="refsim.formats:format_named")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the block format or the format of a name."""

        block = next((row for row in BLOCK_FORMATS if value in (row.name, *row.aliases)), None)
        if block is None and value in policy_names():
            help = f"refsim diffpolicy e4m3 {value} OTHER"
            raise RefsimError("unknown-format", f"{value} is a policy, and the format comes first", help=help)
        return block or super().convert(value, param, ctx)


POLICY = Name("policy", "refsim.cli.commands.diffpolicy:policy_names")


class DiffPolicyOptions(Options):
    """The options of `refsim diffpolicy`."""

    row: Format | BlockFormat | None = argument("[FORMAT", type=Subject())
    policy: str | None = argument("A", type=POLICY)
    other: str | None = argument("B]", type=POLICY)
    file: Path | None = option("Tensor on which two recipes of a block format are compared.", "--on")
    key: str | None = option("Name of the tensor, if the file holds several.")


@answering()
def command(asked: DiffPolicyOptions) -> Document | Answer:
    """Show the float32 inputs that policies A and B convert to different codes of FORMAT. List all policies without arguments.

    For a narrow format, 196608 float32 patterns decide everything. The table counts, for each class of inputs, how many of
    these patterns differ, and shows the first. Example: for a NaN in e4m3, torch keeps the sign (0xff) and CUDA writes 0x7f.
    For a block format (mxfp8, mxfp4, nvfp4, ...) A and B are recipes, compared on the tensor in FILE. The exit code is 1 if
    they differ.

    \b
      refsim diffpolicy
      refsim diffpolicy e4m3 torch cuda.satfinite
      refsim diffpolicy e5m2 triton torch
      refsim diffpolicy nvfp4 te torchao \\
          --on weights.safetensors --key layer.0.weight
    """
    row, policy, other = asked.row, asked.policy, asked.other
    if row is None:
        return _all_policies()

    if isinstance(row, BlockFormat):
        return _recipes(row, asked)
    if asked.file is not None or asked.key is not None:
        raise RefsimError("usage", "--on and --key are for block formats", where=f"refsim diffpolicy {row}")
    if policy is None or other is None:
        what, help = "give two policies to compare", f"policies of {row}: {', '.join(_policies_of(row)) or 'none'}"
        raise RefsimError("missing-argument", what, where=f"refsim diffpolicy {row}", help=help)

    found = diff_policies(row, policy, other)
    title = f"{row}: {policy} and {other}"
    if not found:
        agreement = Wording(
            (f"{policy} and {other} agree on every input class of {row}",),
            {"format": row.name, "policies": [policy, other], "differences": []},
        )
        return Document((agreement,), title)
    columns = (
        Column("format", text=False, of=lambda _: row.name),
        Column("inputs", strong=True, of="input_class"),
        Column("count", align="right"),
        Column("first_bits", label="first", drop=1, of=lambda each: Bits(each.pattern, 32)),
        Column("first_value", label=" ", gap=1, of=lambda each: code_number(each.pattern, F32)),
        Column("policy", text=False),
        Column("code", label=policy, of=lambda each: as_bits(each.code, row)),
        Column("value", label=" ", gap=1, drop=2, of=lambda each: code_number(each.code, row)),
        Column("other_policy", text=False),
        Column("other_code", label=other, of=lambda each: as_bits(each.other, row)),
        Column("other_value", label=" ", gap=1, drop=2, of=lambda each: code_number(each.other, row)),
    )
    table = Table.of(columns, found, key="differences")
    return Answer(Document((table,), title), FAILED)


def _recipes(row: BlockFormat, asked: DiffPolicyOptions) -> Answer:
    """Return the comparison of two recipes on a tensor. Raises RefsimError where a recipe or the tensor is missing."""

    where = f"refsim diffpolicy {row}"
    if asked.policy is None or asked.other is None:
        names = ", ".join(each.name for each in recipes_of(row))
        raise RefsimError(
            "missing-argument", "give two recipes to compare", where=where, help=f"recipes of {row}: {names}"
        )
    pair = recipe_named(asked.policy, row), recipe_named(asked.other, row)
    if asked.file is None:
        what = "give the tensor on which the recipes are compared"
        raise RefsimError("missing-argument", what, where=where, help="--on FILE, a tensor of bf16, f16 or f32")

    return differing(load_codes(asked.file, None, asked.key), row, *pair)


def _all_policies() -> Document:

    rows = []
    for name in policy_names():
        family = [row for row in CONVERSIONS.values() if row.policy == name]
        formats = tuple(dict.fromkeys(row.to.name for row in family))
        rows.append((name, formats, tuple(dict.fromkeys(row.source for row in family))))
    return Document((Table(POLICY_COLUMNS, tuple(rows), key="policies"),), "conversion policies")


def _policies_of(row: Format) -> list[str]:

    rows = [each for each in CONVERSIONS.values() if each.policy and each.to == row and each.reads is F32]
    return list(dict.fromkeys(each.policy for each in rows))
