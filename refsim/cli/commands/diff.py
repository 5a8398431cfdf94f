"""refsim diff: compare two files of codes bit for bit."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from refsim.cli.arguments import format_option, load_codes
from refsim.cli.delivery import AGREED, FAILED, Answer, answers
from refsim.cli.extents import Whole
from refsim.cli.names import THREADS_OR_WEIGHTS, weight_layout
from refsim.errors import counted
from refsim.render import Column, Document, Table, Wording, number

MOST_ROWS = 100

if TYPE_CHECKING:
    from refsim.checkpoints.comparison import TensorDifference
    from refsim.formats import Format
    from refsim.layouts.families import Fragment


TENSORS = (
    Column("tensor", strong=True),
    Column("shape"),
    Column("stored", drop=2),
    Column("compared"),
    Column("differ", align="right"),
    Column("of", align="right", drop=3),
    Column("worst", align="right", drop=1),
)


def _of_checkpoints(found: "list[TensorDifference]", title: str) -> Answer:
    """Return the table of two checkpoints; tensors that agree are counted."""
    apart = [row for row in found if row.differing or row.worst]
    rows = tuple(
        (
            row.key,
            " x ".join(map(str, row.shape)),
            row.layouts,
            row.compared,
            row.differing,
            row.count,
            number(row.worst),
        )
        for row in apart[:MOST_ROWS]
    )
    left = f"; {len(apart) - MOST_ROWS} more differ" if len(apart) > MOST_ROWS else ""
    said = f"{counted(len(found) - len(apart), 'tensor')} of {len(found)} agree{left}"
    facts = {"tensors_compared": len(found), "differing": len(apart)}
    document = Document((Wording((said,), facts, is_beside=True), Table(TENSORS, rows, key="tensors")), title)
    return Answer(document, FAILED if apart else AGREED)


@click.command()
@click.argument("got", type=click.Path(path_type=Path))
@click.argument("want", type=click.Path(path_type=Path))
@format_option(required=False, arrays=True)
@click.option("--key", metavar="NAME", help="Name of the tensor, if a file holds several.")
@click.option("--any-nan", is_flag=True, help="Count all NaN codes as equal.")
@click.option("--within", metavar="ULP", type=Whole(min=0), default=0, help="Accept a distance of up to ULP codes.")
@click.option(
    "--layout",
    "fragment",
    metavar="NAME",
    type=THREADS_OR_WEIGHTS,
    help="Show which thread holds each differing element; or the layout of a checkpoint's weights.",
)
@answers
def command(
    *,
    got: Path,
    want: Path,
    row: "Format | None",
    key: str | None,
    any_nan: bool,
    within: int,
    fragment: "Fragment | None",
) -> Answer:
    """Compare the codes of two files (npy, npz, safetensors, raw) bit for bit. The exit code is 1 if they differ.

    Two checkpoints of several tensors are compared tensor by tensor, the worst first: in bits where their layouts agree,
    else by the values of their weights.

    The answer counts the elements that differ, and names the pattern of their places. It shows bits, values and distance in
    ulp of the first and of the worst element. Example: bf16 0x3f82 is 2 ulp above 0x3f80.

    \b
      refsim diff got.npy want.npy -t bf16
      refsim diff got.npy want.npy -t bf16 --layout wgmma.m64n128k32.e4m3.d
      refsim diff got.safetensors want.safetensors --key layer.0 --as json
    """
    from refsim import compare
    from refsim.errors import RefsimError

    if (
        key is None
        and row is None
        and fragment is None
        and not {got.suffix, want.suffix} & {".npy", ".npz", ".bin", ".raw"}
    ):
        from refsim.checkpoints.comparison import are_checkpoints, compare_checkpoints

        if are_checkpoints(got, want, layout=weight_layout()):
            found = compare_checkpoints(got, want, layout=weight_layout())
            return _of_checkpoints(found, f"{got} and {want}")
    one, other = load_codes(got, row, key), load_codes(want, row, key)
    if one.format != other.format:
        raise RefsimError(
            "format-mismatch",
            f"{got} holds {one.format}, {want} holds {other.format}",
            help="-t FORMAT where one of them is meant otherwise",
        )
    apart = compare.bits(
        one.codes, other.codes, one.format, fragment, nan="any-payload" if any_nan else "bitwise", within_ulps=within
    )
    report = Wording(tuple(apart.lines()), {"got": str(got), "want": str(want), **apart.to_json()})
    return Answer(Document((report,), f"{got} and {want}"), FAILED if apart else AGREED)
