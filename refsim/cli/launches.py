"""Arguments of a launch on the command line: a file, extents, values, and where arrays are saved afterwards."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refsim.cli.arguments import load_codes, names_array, place_and_key
from refsim.cli.options import Options, option
from refsim.cli.spelled import count_in, number_in, real_in
from refsim.errors import RefsimError

if TYPE_CHECKING:
    from refsim.kernel_code import Compiler, KernelCode
    from refsim.ptx import Program

CUDA_SUFFIXES = (".cu", ".cuh")

MOST_BYTES = 1 << 30
_SAME = {"i8": "s8", "i16": "s16", "i32": "s32", "i64": "s64", "float": "f32", "double": "f64", "int": "s32"}
_SCALARS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64")
ARGUMENT_RULE = (
    "TYPE:VALUE (u64:1000, f32:1.5, u32:0x3f800000), FILE.npy or FORMAT:FILE.npy (bf16:x.npy; copied in and back), "
    "FILE:KEY of a checkpoint, zeros:TYPE:COUNT"
)


class Extents(click.ParamType):  # type: ignore[type-arg]
    """A parameter of 1 to 3 positive extents, such as 4 or 2x3."""

    name = "extents"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [count_in(part) for part in str(value).lower().split("x")]
        extents = tuple(part for part in parts if part)
        if len(extents) < len(parts) or len(parts) > 3:
            what, where = f"{value!r} is not a grid or block", param.opts[-1] if param else ""
            raise RefsimError("bad-launch", what, where, rule="one to three extents: 4 or 2x3x1")
        return extents


class Compilation(Options):
    """How a CUDA file is compiled: --compiler, --define, --include and --option."""

    compiler: "Compiler" = option(
        "Compiler of a CUDA file; nvcc also accepts host code and must be on PATH.",
        type=click.Choice(("nvrtc", "nvcc")),
        default="nvrtc",
    )
    defines: tuple[str, ...] = option("Macro for a CUDA file.", "--define", "-D", metavar="NAME[=VALUE]")
    include: tuple[Path, ...] = option("Folder of headers for a CUDA file.", "--include", "-I", metavar="FOLDER")
    options: tuple[str, ...] = option("NVRTC flag, e.g. --fmad=false.", "--option", metavar="FLAG")

    def code(self, file: Path, entry: str | None) -> "KernelCode":
        """Return the code of a CUDA file; `entry` is the only entry that is needed, None for all."""
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
            entries=() if entry is None else (entry,),
        )


def loaded(file: Path, target: str | None, entry: str | None, compilation: Compilation) -> "Program":
    """Return the program of a PTX file or of a compiled CUDA file. An entry with template arguments is instantiated."""
    from refsim import ptx

    if file.suffix in CUDA_SUFFIXES:
        from refsim.device.compile import compiled

        made = compiled(compilation.code(file, entry), target or ptx.DEFAULT_TARGET)
        return ptx.load(made.text, made.target)
    if compilation != Compilation():
        raise RefsimError(
            "bad-file", f"{file.name} is no CUDA file", rule=f"options of a compiler are of {', '.join(CUDA_SUFFIXES)}"
        )
    return ptx.load(file, target)


@dataclass(frozen=True)
class LaunchArgument:
    """An argument as a launch takes it, and the format of an array of codes."""

    value: Any
    format: Any = None

    def beginning(self) -> str:
        """Return the first eight elements of an array as decimal numbers."""
        from refsim.conversions import decode
        from refsim.formats import ARRAY_TYPES

        first = self.value.reshape(-1)[:8]
        shown = first
        if self.format is not None and self.format not in ARRAY_TYPES:
            shown = decode(first.view(self.format.code_dtype), self.format, "float32")
        return f"{' '.join(map(str, shown))}{' ...' if self.value.size > 8 else ''}"


def parse_argument(position: int, text: str) -> LaunchArgument:
    """Return the NumPy scalar or array that --arg TEXT stands for (ARGUMENT_RULE); `position` names it in errors."""
    import numpy as np

    kind, _, value = text.partition(":")
    if text.endswith(".npy") or names_array(text) or (names_array(value) and kind not in (*_SCALARS, *_SAME)):
        return _array_of(text, kind, value)
    name, count = value.partition(":")[::2] if kind == "zeros" else (kind, "1")
    name = _SAME.get(name, name)
    size = count_in(count)
    if ":" not in text or name not in _SCALARS or size is None:
        lacks = "has no type and value" if ":" not in text else "names no type" if size is not None else "has no count"
        what = f"argument {position}: {text!r} {lacks}"
        raise RefsimError("bad-argument", what, rule=ARGUMENT_RULE, help=f"types are {', '.join(_SCALARS)}")
    if size * int(name[1:]) // 8 > MOST_BYTES:
        what = f"argument {position}: {text!r} is too large"
        raise RefsimError("bad-argument", what, rule=f"an array has at most {MOST_BYTES} bytes")
    if kind == "zeros":
        return LaunchArgument(np.zeros(size, _dtype(name)))
    try:
        return LaunchArgument(_scalar(name, value))
    except (ValueError, OverflowError):
        if names_array(value):
            return _array_of(text, kind, value)
        what = f"argument {position}: {value!r} is not a value of {name}"
        bits = int(name[1:])
        span = f"-2^{bits - 1} to 2^{bits - 1} - 1" if name[0] == "s" else f"0 to 2^{bits} - 1"
        way = f"{name}:1.5 or {name}:0x1" if name[0] == "f" else f"a whole number in {span}"
        raise RefsimError("bad-argument", what, rule=ARGUMENT_RULE, help=way) from None


def _array_of(text: str, kind: str, value: str) -> LaunchArgument:
    """Return the array of FILE.npy or FORMAT:FILE.npy: float16 and float32 as numbers, other formats as codes."""
    from refsim.formats import array_type

    is_whole = ":" not in text or Path(text).exists() or place_and_key(Path(text))[1] is not None
    named = None if is_whole else array_type(kind)
    path = Path(text if named is None else value)
    stored = load_codes(path, named, option=f"the format in --arg FORMAT:{text}")
    codes = stored.codes.copy()
    return LaunchArgument(codes.view(stored.format.array_dtype or codes.dtype), stored.format)


def _dtype(name: str) -> str:
    return {"u": "u", "s": "i", "f": "f"}[name[0]] + str(int(name[1:]) // 8)


def _scalar(kind: str, value: str) -> Any:
    """Return a NumPy scalar of a PTX type; hexadecimal gives the bits of a float."""
    import numpy as np

    dtype, bits = np.dtype(_dtype(kind)), number_in(value)
    if dtype.kind == "f" and not value.lower().startswith("0x"):
        return dtype.type(real_in(value))
    if bits is None:
        raise ValueError(value)
    return np.array([bits], f"u{dtype.itemsize}").view(dtype)[0] if dtype.kind == "f" else dtype.type(bits)


def saved(text: str, values: list[Any]) -> tuple[int, Path]:
    """Return the position of an argument and the file of N=FILE.npy."""
    word, _, path = text.partition("=")
    position = count_in(word)
    if position is None or position >= len(values) or not path.endswith(".npy"):
        raise RefsimError("bad-value", f"{text!r} names no argument to save", rule="N=FILE.npy, N from 0")
    if getattr(values[position], "ndim", 0) == 0:
        raise RefsimError("bad-value", f"argument {position} is a scalar", rule="only arrays are copied back")
    return position, Path(path)


def write_array(path: Path, array: Any) -> None:
    """Write an array to an .npy file, whole or not at all."""
    import numpy as np

    from refsim.files.access import write_atomically

    write_atomically(path, lambda stream: np.save(stream, array), overwrite=True)


def previews(given: list[LaunchArgument]) -> tuple[str, ...]:
    """Return a line for each array of a launch: its position and its first elements."""
    arrays = ((at, each) for at, each in enumerate(given) if getattr(each.value, "ndim", 0) and each.value.size)
    return tuple(f"argument {position}: {each.beginning()}" for position, each in arrays)
