"""refsim diff: compare two files of codes bit for bit."""

from pathlib import Path
from typing import TYPE_CHECKING

from refsim.cli.arguments import format_field, load_codes, require_one_format
from refsim.cli.delivery import AGREED, FAILED, Answer, answering
from refsim.cli.extents import Whole
from refsim.cli.names import THREADS_OR_WEIGHTS, weight_layout
from refsim.cli.options import Options, argument, option
from refsim.errors import counted
from refsim.render import Column, Document, Table, Wording, number

MOST_ROWS = 100

if TYPE_CHECKING:
    from refsim.checkpoints.comparison import TensorDifference
    from refsim.formats import Format
    from refsim.layouts.families import Fragment


TENSORS = (
    Column("tensor", strong=True, of="key"),
    Column("shape", of=lambda row: " x ".join(map(str, row.shape))),
    Column("stored", drop=2, of="layouts"),
    Column("compared"),
    Column("differ", align="right", of="differing"),
    Column("of", align="right", drop=3, of="count"),
    Column("worst", align="right", drop=1, of=lambda row: number(row.worst)),
)


def _of_checkpoints(found: "list[TensorDifference]", title: str) -> Answer:
    """Return the table of two checkpoints; tensors that agree are counted."""
    apart = [row for row in found if row.differing or row.worst]
    left = f"; {len(apart) - MOST_ROWS} more differ" if len(apart) > MOST_ROWS else ""
    said = f"{counted(len(found) - len(apart), 'tensor')} of {len(found)} agree{left}"
    facts = {"tensors_compared": len(found), "differing": len(apart)}
    parts = Wording((said,), facts, is_beside=True), Table.of(TENSORS, apart[:MOST_ROWS], key="tensors")
    return Answer(Document(parts, title), FAILED if apart else AGREED)


class DiffOptions(Options):
    """The options of `refsim diff`."""

    got: Path = argument()
    want: Path = argument()
    row: "Format | None" = format_field(arrays=True)
    key: str | None = option("Name of the tensor, if a file holds several.")
    any_nan: bool = option("Count all NaN codes as equal.")
    within: int = option("Accept a distance of up to ULP codes.", metavar="ULP", type=Whole(min=0), default=0)
    fragment: "Fragment | None" = option(
        "Show which thread holds each differing element; or the layout of a checkpoint's weights.",
        "--layout",
        metavar="NAME",
        type=THREADS_OR_WEIGHTS,
    )


@answering()
def command(asked: DiffOptions) -> Answer:
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

    got, want, row, key = asked.got, asked.want, asked.row, asked.key
    is_chosen = key is not None or row is not None or asked.fragment is not None
    if not is_chosen and not {got.suffix, want.suffix} & {".npy", ".npz", ".bin", ".raw"}:
        from refsim.checkpoints.comparison import are_checkpoints, compare_checkpoints

        if are_checkpoints(got, want, layout=weight_layout()):
            found = compare_checkpoints(got, want, layout=weight_layout())
            return _of_checkpoints(found, f"{got} and {want}")
    one, other = load_codes(got, row, key), load_codes(want, row, key)
    require_one_format(got, one.format, want, other.format)
    pair, nan = (one.codes, other.codes, one.format), "any-payload" if asked.any_nan else "bitwise"
    apart = compare.bits(*pair, asked.fragment, nan=nan, within_ulps=asked.within)  # type: ignore[arg-type]
    report = Wording(tuple(apart.lines()), {"got": str(got), "want": str(want), **apart.to_json()})
    return Answer(Document((report,), f"{got} and {want}"), FAILED if apart else AGREED)
