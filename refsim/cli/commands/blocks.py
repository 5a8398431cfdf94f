"""refsim quantize, dequantize and files: blocks that share a scale, in files of weights and checkpoints."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refsim.cli.arguments import place_and_key
from refsim.cli.delivery import answering
from refsim.cli.names import FORMAT, WEIGHT_LAYOUT, Name
from refsim.cli.options import Options, argument, option
from refsim.cli.progress import Countable, reporting, tell
from refsim.errors import RefsimError, counted
from refsim.render import Column, Document, Table, Wording

if TYPE_CHECKING:
    from refsim.checkpoints.conversion import Report
    from refsim.formats import Format

BLOCKS = Name("block format", "refsim.checkpoints.conversion:made_names")
RECIPE = Name("recipe", "refsim.cli.commands.blocks:recipe_names")
TENSORS = (
    Column("tensor", strong=True, of="key"),
    Column("shape", of=lambda each: " x ".join(map(str, each.shape))),
    Column("done"),
    Column("before", unit="B", align="right", drop=2, of="bytes_before"),
    Column("after", unit="B", align="right", drop=1, of="bytes_after"),
    Column("why", drop=3, of=lambda each: each.why or None),
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


def layout_field() -> Any:
    """Return the field of --layout."""
    return option("Layout of the weights, where names do not tell it.", metavar="NAME", type=WEIGHT_LAYOUT)


def recipe_names() -> list[str]:
    """Return the names of recipes, each once: several formats may have a recipe of that name."""
    from refsim.scaling import RECIPES

    return list(dict.fromkeys(row.name for row in RECIPES))


class QuantizeOptions(Options):
    """The options of `refsim quantize`."""

    row: str = argument("FORMAT", type=BLOCKS)
    file: Path = argument("FILE")
    to: Path | None = argument("[TO]")
    recipe: str | None = option("Quantization recipe (default: rceil; te for nvfp4).", metavar="NAME", type=RECIPE)
    keys: tuple[str, ...] = option("Only tensors with such names: '*.weight'.", "--key", metavar="PATTERN")
    overwrite: bool = option("Replace TO.")


@answering()
def quantize(asked: QuantizeOptions) -> Document:
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

    file, place = asked.file, _place(asked.file, asked.to, asked.row)
    with reporting(sys.stderr) as live:
        report, keys, recipe = _report(live, "quantizing"), asked.keys, asked.recipe
        told = quantize_file(file, place, asked.row, recipe=recipe, keys=keys, overwrite=asked.overwrite, report=report)
    return Document((Table.of(TENSORS, told, key="tensors"),), f"{asked.row} to {place}")


class DequantizeOptions(Options):
    """The options of `refsim dequantize`."""

    file: Path = argument("FILE[:KEY]")
    to: Path | None = argument("[TO]")
    row: "Format" = option("f32 (default), bf16 or f16.", "--to", "-t", metavar="FORMAT", type=FORMAT, default="f32")
    layout: str | None = layout_field()
    keys: tuple[str, ...] = option("Only weights with such names: '*.weight'.", "--key", metavar="PATTERN")
    overwrite: bool = option("Replace TO.")


@answering(result="to")
def dequantize(asked: DequantizeOptions) -> Document:
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

    file, key = place_and_key(asked.file)
    wanted = asked.keys if key is None else (key, *asked.keys)
    place = asked.to or file.with_name(f"{file.stem if file.suffix else file.name}.{asked.row}.safetensors")
    if place.suffix.lower() not in OUTPUTS:
        raise RefsimError(
            "unknown-suffix", f"{str(place)!r} is no file of arrays", "TO", help=f"one of {', '.join(OUTPUTS)}"
        )
    _require_other(file, place)
    with reporting(sys.stderr) as live:
        report, layout = _report(live, "dequantizing"), asked.layout
        told = dequantize_file(
            file, place, asked.row, layout=layout, keys=wanted, overwrite=asked.overwrite, report=report
        )
    layouts = Counter(each.why for each in told if each.done == "dequantized")
    lines = tuple(f"layout {why} ({counted(count, 'weight')})" for why, count in layouts.most_common(MOST_LINES))
    if len(layouts) > MOST_LINES:
        lines = (*lines, f"and {len(layouts) - MOST_LINES} more, which the table shows")
    said = Wording(lines, {"layouts": dict(layouts)}, is_beside=True)
    return Document((said, Table.of(TENSORS, told, key="tensors")), f"{asked.row} to {place}")


class FilesOptions(Options):
    """The options of `refsim files`."""

    file: Path = argument("FILE[:KEY]")
    layout: str | None = layout_field()
    scan: bool = option("Read all numbers, also of tensors beyond 64 MiB in all.")


@answering()
def files(asked: FilesOptions) -> Document:
    """List the tensors of a checkpoint: type, shape, layout, range of the scales, NaN and codes that the type lacks.

    FILE is a safetensors or GGUF file, a folder of them, or an index.json. Numbers of the first 64 MiB are read.

    \b
      refsim files model.safetensors
    """
    from refsim.checkpoints.tensors import listed

    place, key = place_and_key(asked.file)
    rows, lines, unread = listed(place, key, asked.layout, asked.scan)
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
