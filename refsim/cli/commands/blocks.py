"""refsim quantize, dequantize and files: blocks that share a scale, in files of weights and checkpoints."""

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from refsim.cli.arguments import place_and_key
from refsim.cli.delivery import answers
from refsim.cli.names import FORMAT, WEIGHT_LAYOUT, Name
from refsim.cli.progress import Countable, reporting, tell
from refsim.errors import RefsimError, counted
from refsim.render import Column, Document, Table, Wording

if TYPE_CHECKING:
    from refsim.checkpoints.conversion import FileTensor, Report
    from refsim.formats import Format

BLOCKS = Name("block format", "refsim.checkpoints.conversion:made_names")
RECIPE = Name("recipe", "refsim.cli.commands.blocks:recipe_names")
TENSORS = (
    Column("tensor", strong=True),
    Column("shape"),
    Column("done"),
    Column("before", unit="B", align="right", drop=2),
    Column("after", unit="B", align="right", drop=1),
    Column("why", drop=3),
)


MOST_LINES = 12
OUTPUTS = (".safetensors", ".npz", ".npy")
LISTED = (
    Column("tensor", strong=True),
    Column("type"),
    Column("shape"),
    Column("bits", align="right", drop=5),
    Column("layout"),
    Column("scales", drop=2),
    Column("nan", label="NaN", align="right", drop=3),
    Column("outside", align="right", drop=4),
    Column("why", drop=1),
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
    *, row: str, file: Path, to: Path | None, recipe: str | None, keys: tuple[str, ...], overwrite: bool
) -> Document:
    """Quantize the matrices of a safetensors FILE to a block FORMAT (mxfp8, mxfp6_e2m3, mxfp4, nvfp4, ...) and write TO.

    A tensor w becomes its codes w and its scales w.scales; nvfp4 adds w.tensor_scale. Other tensors are copied. TO is FILE
    with the format before its suffix by default. FORMAT may be a layout of public checkpoints, such as deepseek-fp8,
    modelopt-nvfp4, ct-nvfp4 or gpt-oss. Repeat the command to continue an interrupted run.

    \b
      refsim quantize mxfp8 model.safetensors
      refsim quantize modelopt-nvfp4 model.safetensors
      refsim quantize nvfp4 model.safetensors small.safetensors \\
          --recipe torchao --key '*.weight'
    """
    from refsim.checkpoints.conversion import quantize_file

    place = _place(file, to, row)
    with reporting(sys.stderr) as live:
        report = _report(live, "quantizing")
        told = quantize_file(file, place, row, recipe=recipe, keys=keys, overwrite=overwrite, report=report)
    return Document((_table(told),), f"{row} to {place}")


@click.command()
@click.argument("file", metavar="FILE[:KEY]", type=click.Path(path_type=Path))
@click.argument("to", metavar="[TO]", required=False, type=click.Path(path_type=Path))
@click.option("--to", "-t", "row", metavar="FORMAT", type=FORMAT, default="f32", help="f32 (default), bf16 or f16.")
@click.option("--layout", metavar="NAME", type=WEIGHT_LAYOUT, help="Layout of the weights, where names do not tell it.")
@click.option("--key", "keys", metavar="PATTERN", multiple=True, help="Only weights with such names: '*.weight'.")
@click.option("--overwrite", is_flag=True, help="Replace TO.")
@partial(answers, result="to")
def dequantize(
    *, file: Path, to: Path | None, row: "Format", layout: str | None, keys: tuple[str, ...], overwrite: bool
) -> Document:
    """Write the values of the quantized weights in FILE, each rounded once.

    FILE is a safetensors or GGUF file, a folder of them, or a model.safetensors.index.json. Names, types and shapes of its
    tensors tell the layout: DeepSeek, GPT-OSS, ModelOpt, compressed-tensors, AWQ, GPTQ, torchao, bitsandbytes, GGUF or
    refsim's own. The quantization_config of config.json in its folder decides between two readings. TO ends in .safetensors,
    .npz or .npy; other tensors are copied. Repeat the command to continue an interrupted run.

    \b
      refsim dequantize model.mxfp8.safetensors back.safetensors
      refsim dequantize model.nvfp4.safetensors --to bf16
      refsim dequantize model.mxfp8.safetensors:layer.weight -o w.npy
    """
    from refsim.checkpoints.conversion import dequantize_file

    file, key = place_and_key(file)
    wanted = keys if key is None else (key, *keys)
    place = to or file.with_name(f"{file.stem if file.suffix else file.name}.{row}.safetensors")
    if place.suffix.lower() not in OUTPUTS:
        raise RefsimError(
            "unknown-suffix", f"{str(place)!r} is no file of arrays", "TO", help=f"one of {', '.join(OUTPUTS)}"
        )
    _require_other(file, place)
    with reporting(sys.stderr) as live:
        report = _report(live, "dequantizing")
        told = dequantize_file(file, place, row, layout=layout, keys=wanted, overwrite=overwrite, report=report)
    layouts = Counter(each.why for each in told if each.done == "dequantized")
    lines = tuple(f"layout {why} ({counted(count, 'weight')})" for why, count in layouts.most_common(MOST_LINES))
    if len(layouts) > MOST_LINES:
        lines = (*lines, f"and {len(layouts) - MOST_LINES} more, which the table shows")
    said = Wording(lines, {"layouts": dict(layouts)}, is_beside=True)
    return Document((said, _table(told)), f"{row} to {place}")


@click.command()
@click.argument("file", metavar="FILE[:KEY]", type=click.Path(path_type=Path))
@click.option("--layout", metavar="NAME", type=WEIGHT_LAYOUT, help="Layout of the weights, where names do not tell it.")
@click.option("--scan", is_flag=True, help="Read all numbers, also of tensors beyond 64 MiB in all.")
@answers
def files(*, file: Path, layout: str | None, scan: bool) -> Document:
    """List the tensors of a checkpoint: type, shape, layout, range of the scales, NaN and codes that the type lacks.

    FILE is a safetensors or GGUF file, a folder of them, or an index.json. Numbers of the first 64 MiB are read.

    \b
      refsim files model.safetensors
    """
    from refsim.checkpoints.tensors import listed

    place, key = place_and_key(file)
    rows, lines, unread = listed(place, key, layout, scan)
    if unread:
        lines = (*lines, f"numbers of {counted(unread, 'tensor')} are not read: --scan reads them")
    said = Wording(lines, {"unread": unread}, is_beside=True)
    return Document((said, Table(LISTED, rows, key="tensors")), str(place))


def _place(file: Path, to: Path | None, done: str) -> Path:
    place = file.with_suffix(f".{done}{file.suffix}") if to is None and file.name else to
    for name, path in (("FILE", file), ("TO", place)):
        if path is None or path.suffix != ".safetensors":
            raise RefsimError(
                "unknown-suffix", f"{str(path)!r} is no .safetensors file", where=name, help="refsim.quantize in Python"
            )
    assert place is not None
    _require_other(file, place)
    return place


def _require_other(file: Path, place: Path) -> None:
    if place.resolve() == file.resolve():
        raise RefsimError("file-exists", "TO is FILE itself", where=str(place), help="give another name")


def _report(live: Callable[[Countable], None] | None, phase: str) -> "Report":
    return lambda key, done, planned: tell(live, key, phase, done, planned)


def _table(told: "list[FileTensor]") -> Table:
    rows = tuple(
        (each.key, " x ".join(map(str, each.shape)), each.done, each.bytes_before, each.bytes_after, each.why or None)
        for each in told
    )
    return Table(TENSORS, rows, key="tensors")
