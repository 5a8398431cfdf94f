"""What a launch is given on the command line: a file, extents, arguments, and where arrays are saved afterwards."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refsim.cli.spelled import count_in, number_in, real_in
from refsim.errors import RefsimError

if TYPE_CHECKING:
    from refsim.kernel_code import Compiler, KernelCode
    from refsim.ptx import Program

Command = Callable[..., Any]
CUDA_SUFFIXES = (".cu", ".cuh")

MOST_BYTES = 1 << 30
_SCALARS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64")
ARGUMENT_RULE = (
    "TYPE:VALUE (u64:1000, f32:1.5, u32:0x3f800000), FILE.npy or FORMAT:FILE.npy (bf16:x.npy; copied in and back), "
    "zeros:TYPE:COUNT"
)


@dataclass(frozen=True)
class Extents:
    """1 to 3 positive extents: 4 or 2x3."""

    text: str

    @property
    def numbers(self) -> tuple[int, ...]:
        parts = [count_in(part) for part in self.text.lower().split("x")]
        extents = tuple(part for part in parts if part)
        if len(extents) < len(parts) or len(parts) > 3:
            raise RefsimError(
                "bad-launch", f"{self.text!r} is no grid or block", rule="one to three extents: 4 or 2x3x1"
            )
        return extents


@dataclass(frozen=True)
class Compilation:
    """How a CUDA file is compiled: what --compiler, --option, --include and --define say."""

    compiler: "Compiler" = "nvrtc"
    options: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()
    defines: tuple[str, ...] = ()

    def code(self, file: Path, entry: str) -> "KernelCode":
        """The code of a file of which one entry is wanted."""
        from refsim.kernel_code import KernelCode

        defined = {
            name: value if mark else None for name, mark, value in (text.partition("=") for text in self.defines)
        }
        return KernelCode(
            file=file,
            options=self.options,
            include=self.include,
            defines=defined,
            compiler=self.compiler,
            entries=(entry,),
        )


def compilation_options(function: Command) -> Command:
    """--compiler, --define, --include and --option, which a command takes as **compilation for `Compilation`."""
    for option in reversed(
        (
            click.option(
                "--compiler",
                type=click.Choice(("nvrtc", "nvcc")),
                default="nvrtc",
                show_default=True,
                help="Compiler of a CUDA file; nvcc also accepts host code and must be on PATH.",
            ),
            click.option(
                "--define",
                "-D",
                "defines",
                multiple=True,
                metavar="NAME[=VALUE]",
                help="Define a macro for a CUDA file.",
            ),
            click.option(
                "--include",
                "-I",
                multiple=True,
                type=click.Path(path_type=Path),
                metavar="FOLDER",
                help="Folder of headers for a CUDA file, in addition to those of [tool.refsim] include.",
            ),
            click.option("--option", "options", multiple=True, metavar="FLAG", help="Flag for the compiler."),
        )
    ):
        function = option(function)
    return function


def loaded(file: Path, target: str | None, entry: str, compilation: Compilation) -> "Program":
    """A PTX file, or a CUDA file compiled, ready to launch; an entry with template arguments is instantiated."""
    from refsim import ptx

    if file.suffix in CUDA_SUFFIXES:
        from refsim.device.compile import compiled

        made = compiled(compilation.code(file, entry), target or ptx.DEFAULT_TARGET)
        return ptx.load(made.text, made.target)
    if compilation != Compilation():
        raise RefsimError(
            "not-compiled",
            f"{file.name} is no CUDA file",
            rule=f"options of a compiler are of {', '.join(CUDA_SUFFIXES)}",
        )
    return ptx.load(file, target)


def argument(position: int, text: str) -> Any:
    """An argument as ARGUMENT_RULE spells it."""
    import numpy as np

    kind, _, value = text.partition(":")
    wrong = RefsimError("bad-argument", f"argument {position}: {text!r} is no argument", rule=ARGUMENT_RULE)
    if kind == "zeros":
        name, _, word = value.partition(":")
        count = count_in(word)
        if name not in _SCALARS or count is None:
            raise wrong
        if count * int(name[1:]) // 8 > MOST_BYTES:
            raise RefsimError(
                "bad-argument",
                f"argument {position}: {text!r} is too large",
                rule=f"an array has at most {MOST_BYTES} bytes",
            )
        return np.zeros(count, _dtype(name))
    if kind in _SCALARS:
        try:
            return _scalar(kind, value)
        except (ValueError, OverflowError):
            raise wrong from None
    if text.endswith(".npy"):
        from refsim import files
        from refsim.formats import FORMATS

        named = kind in {format.name for format in FORMATS}
        try:
            return files.load(Path(value if named else text), format=kind if named else None).codes.copy()
        except RefsimError as error:
            if error.code == "format-needed":
                error.help = f"{error.help.rpartition('; ')[2]}; FORMAT:{text} says so"
            raise
    raise wrong


def _dtype(name: str) -> str:
    return {"u": "u", "s": "i", "f": "f"}[name[0]] + str(int(name[1:]) // 8)


def _scalar(kind: str, value: str) -> Any:
    """A scalar of a PTX type; a float may be given by its bits in hexadecimal."""
    import numpy as np

    dtype, bits = np.dtype(_dtype(kind)), number_in(value)
    if dtype.kind == "f" and not value.lower().startswith("0x"):
        return dtype.type(real_in(value))
    if bits is None:
        raise ValueError(value)
    return np.array([bits], f"u{dtype.itemsize}").view(dtype)[0] if dtype.kind == "f" else dtype.type(bits)


def saved(text: str, values: list[Any]) -> tuple[int, Path]:
    """N=FILE.npy: which argument is saved, and where."""
    word, _, path = text.partition("=")
    position = count_in(word)
    if position is None or position >= len(values) or not path.endswith(".npy"):
        raise RefsimError("bad-save", f"{text!r} names no argument to save", rule="N=FILE.npy, N from 0")
    if getattr(values[position], "ndim", 0) == 0:
        raise RefsimError("bad-save", f"argument {position} is a scalar", rule="only arrays are copied back")
    return position, Path(path)


def write_array(path: Path, array: Any) -> None:
    """An array as an .npy file, whole or not at all."""
    import numpy as np

    from refsim.files.access import write_atomically

    write_atomically(path, lambda stream: np.save(stream, array), overwrite=True)


def previews(values: list[Any]) -> tuple[str, ...]:
    """How each array begins."""
    return tuple(
        f"argument {position}: {' '.join(map(str, value.reshape(-1)[:8]))}{' ...' if value.size > 8 else ''}"
        for position, value in enumerate(values)
        if getattr(value, "ndim", 0) and value.size
    )
