"""refsim quantize and refsim dequantize: convert safetensors files to blocks that share a scale, and back."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from refsim.cli.delivery import answers
from refsim.cli.names import FORMAT, Name
from refsim.cli.progress import Countable, reporting, tell
from refsim.errors import RefsimError
from refsim.render import Column, Document, Table

if TYPE_CHECKING:
    from refsim.formats import Format
    from refsim.scaling import BlockFormat
    from refsim.scaling.checkpoints import FileTensor, Report

BLOCKS = Name("block format", "refsim.scaling:BLOCK_FORMATS", by="name", row="refsim.scaling:block_format")
RECIPE = Name("recipe", "refsim.cli.commands.blocks:recipe_names")
TENSORS = (
    Column("tensor", strong=True),
    Column("shape"),
    Column("done"),
    Column("before", unit="B", align="right", drop=2),
    Column("after", unit="B", align="right", drop=1),
    Column("why", drop=3),
)


def recipe_names() -> list[str]:
    """Return the names of recipes, each once: several formats may have a recipe of that name."""
    from refsim.scaling import RECIPES

    return list(dict.fromkeys(row.name for row in RECIPES))


@click.command()
@click.argument("row", metavar="FORMAT", type=BLOCKS)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.argument("to", metavar="[TO]", required=False, type=click.Path(path_type=Path))
@click.option("--recipe", metavar="NAME", type=RECIPE, help="Quantization recipe (default: rceil; te for nvfp4).")
@click.option("--key", "keys", metavar="PATTERN", multiple=True, help="Only tensors with such names: '*.weight'.")
@click.option("--overwrite", is_flag=True, help="Replace TO.")
@answers
def quantize(
    *, row: "BlockFormat", file: Path, to: Path | None, recipe: str | None, keys: tuple[str, ...], overwrite: bool
) -> Document:
    """Quantize the matrices of a safetensors FILE to a block FORMAT (mxfp8, mxfp6_e2m3, mxfp4, nvfp4, ...) and write TO.

    A tensor w becomes its codes w and its scales w.scales; nvfp4 adds w.tensor_scale. Other tensors are copied. TO is FILE
    with the format before its suffix by default. Repeat the command to continue an interrupted run.

    \b
      refsim quantize mxfp8 model.safetensors
      refsim quantize nvfp4 model.safetensors small.safetensors \\
          --recipe torchao --key '*.weight'
    """
    from refsim.scaling.checkpoints import quantize_file

    place = _place(file, to, str(row))
    with reporting(sys.stderr) as live:
        report = _report(live, "quantizing")
        told = quantize_file(file, place, row, recipe=recipe, keys=keys, overwrite=overwrite, report=report)
    return _document(told, f"{row} to {place}")


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.argument("to", metavar="[TO]", required=False, type=click.Path(path_type=Path))
@click.option("-t", "--format", "row", type=FORMAT, default="bf16", help="bf16, f16 or f32.")
@click.option("--overwrite", is_flag=True, help="Replace TO.")
@answers
def dequantize(*, file: Path, to: Path | None, row: "Format", overwrite: bool) -> Document:
    """Convert a FILE that refsim quantize wrote back to bf16 values, each rounded once, and write TO.

    \b
      refsim dequantize model.mxfp8.safetensors back.safetensors
      refsim dequantize model.nvfp4.safetensors -t f32
    """
    from refsim.scaling.checkpoints import dequantize_file

    place = _place(file, to, str(row))
    with reporting(sys.stderr) as live:
        told = dequantize_file(file, place, row, overwrite=overwrite, report=_report(live, "dequantizing"))
    return _document(told, f"{row} to {place}")


def _place(file: Path, to: Path | None, done: str) -> Path:
    place = file.with_suffix(f".{done}{file.suffix}") if to is None and file.name else to
    for name, path in (("FILE", file), ("TO", place)):
        if path is None or path.suffix != ".safetensors":
            raise RefsimError(
                "unknown-suffix", f"{str(path)!r} is no .safetensors file", where=name, help="refsim.quantize in Python"
            )
    assert place is not None
    if place.resolve() == file.resolve():
        raise RefsimError("file-exists", "TO is FILE itself", where=str(place), help="give another name")
    return place


def _report(live: Callable[[Countable], None] | None, phase: str) -> "Report":
    return lambda key, done, planned: tell(live, key, phase, done, planned)


def _document(told: "list[FileTensor]", title: str) -> Document:
    rows = tuple(
        (each.key, " x ".join(map(str, each.shape)), each.done, each.bytes_before, each.bytes_after, each.why or None)
        for each in told
    )
    return Document((Table(TENSORS, rows, key="tensors"),), title)
