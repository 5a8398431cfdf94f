"""refsim diffpolicy: the numbers that two libraries convert differently."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refsim.cli.arguments import file_option, load_codes
from refsim.cli.delivery import FAILED, Answer, answers
from refsim.cli.names import Name
from refsim.errors import RefsimError
from refsim.render import Bits, Column, Document, Table, Wording

if TYPE_CHECKING:
    from refsim.conversions import PolicyDifference
    from refsim.formats import Format
    from refsim.render import Cell
    from refsim.scaling import BlockFormat

POLICY_COLUMNS = (Column("policy", strong=True), Column("formats"), Column("sources", citation=True))


def policy_names() -> list[str]:
    """Return the policies of headers and libraries, in the order of their entries."""
    from refsim.conversions import CONVERSIONS

    return list(dict.fromkeys(row.policy for row in CONVERSIONS.values() if row.policy))


class Subject(Name):
    """A number format, or a block format, whose policies are recipes."""

    def __init__(self) -> None:
        super().__init__("format", "refsim.formats:FORMATS", by="name", row="refsim.formats:format_named")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the block format or the format of a name."""
        from refsim.scaling import BLOCK_FORMATS

        block = next((row for row in BLOCK_FORMATS if value in (row.name, *row.aliases)), None)
        if block is None and value in policy_names():
            help = f"refsim diffpolicy e4m3 {value} OTHER"
            raise RefsimError("unknown-format", f"{value} is a policy, and the format comes first", help=help)
        return block or super().convert(value, param, ctx)


@click.command()
@click.argument("row", metavar="[FORMAT", required=False, type=Subject())
@click.argument(
    "policy", metavar="A", required=False, type=Name("policy", "refsim.cli.commands.diffpolicy:policy_names")
)
@click.argument(
    "other", metavar="B]", required=False, type=Name("policy", "refsim.cli.commands.diffpolicy:policy_names")
)
@file_option("--on", "file", help="Tensor on which two recipes of a block format are compared.")
@click.option("--key", metavar="NAME", help="Name of the tensor, if the file holds several.")
@answers
def command(
    row: "Format | BlockFormat | None", policy: str | None, other: str | None, file: Path | None, key: str | None
) -> Document | Answer:
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
    if row is None:
        return _all_policies()
    from refsim.scaling import BlockFormat

    if isinstance(row, BlockFormat):
        return _recipes(row, policy, other, file, key)
    if file is not None or key is not None:
        raise RefsimError("usage", "--on and --key are for block formats", where=f"refsim diffpolicy {row}")
    if policy is None or other is None:
        raise RefsimError(
            "missing-argument",
            "give two policies to compare",
            where=f"refsim diffpolicy {row}",
            help=f"policies of {row}: {', '.join(_policies_of(row)) or 'none'}",
        )
    from refsim.conversions import diff_policies

    found = diff_policies(row, policy, other)
    title = f"{row}: {policy} and {other}"
    if not found:
        agreement = Wording(
            (f"{policy} and {other} agree on every input class of {row}",),
            {"format": row.name, "policies": [policy, other], "differences": []},
        )
        return Document((agreement,), title)
    columns = (
        Column("format", text=False),
        Column("inputs", strong=True),
        Column("count", align="right"),
        Column("first_bits", label="first", drop=1),
        Column("first_value", label=" ", gap=1),
        Column("policy", text=False),
        Column("code", label=policy),
        Column("value", label=" ", gap=1, drop=2),
        Column("other_policy", text=False),
        Column("other_code", label=other),
        Column("other_value", label=" ", gap=1, drop=2),
    )
    table = Table(columns, tuple(_cells(each, row) for each in found), key="differences")
    return Answer(Document((table,), title), FAILED)


def _cells(each: "PolicyDifference", row: "Format") -> "tuple[Cell, ...]":
    """Return the cells of one class of inputs: its count, the first input, and both codes."""
    from refsim.cli.answers.anatomy import as_bits, code_number
    from refsim.formats import F32

    return (
        row.name,
        each.input_class,
        each.count,
        Bits(each.pattern, 32),
        code_number(each.pattern, F32),
        each.policy,
        as_bits(each.code, row),
        code_number(each.code, row),
        each.other_policy,
        as_bits(each.other, row),
        code_number(each.other, row),
    )


def _recipes(row: "BlockFormat", recipe: str | None, other: str | None, file: Path | None, key: str | None) -> Answer:
    """Return the comparison of two recipes on a tensor. Raises RefsimError where a recipe or the tensor is missing."""
    from refsim.scaling import recipe_named, recipes_of

    where = f"refsim diffpolicy {row}"
    if recipe is None or other is None:
        names = ", ".join(each.name for each in recipes_of(row))
        raise RefsimError(
            "missing-argument", "give two recipes to compare", where=where, help=f"recipes of {row}: {names}"
        )
    pair = recipe_named(recipe, row), recipe_named(other, row)
    if file is None:
        raise RefsimError(
            "missing-argument",
            "give the tensor on which the recipes are compared",
            where=where,
            help="--on FILE, a tensor of bf16, f16 or f32",
        )
    from refsim.cli.answers.recipes import differing

    return differing(load_codes(file, None, key), row, *pair)


def _all_policies() -> Document:
    from refsim.conversions import CONVERSIONS

    rows = []
    for name in policy_names():
        family = [row for row in CONVERSIONS.values() if row.policy == name]
        formats = tuple(dict.fromkeys(row.to.name for row in family))
        rows.append((name, formats, tuple(dict.fromkeys(row.source for row in family))))
    return Document((Table(POLICY_COLUMNS, tuple(rows), key="policies"),), "conversion policies")


def _policies_of(row: "Format") -> list[str]:
    from refsim.conversions import CONVERSIONS
    from refsim.formats import F32

    rows = [each for each in CONVERSIONS.values() if each.policy and each.to == row and each.reads is F32]
    return list(dict.fromkeys(each.policy for each in rows))
