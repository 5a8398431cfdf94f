"""Arguments that several commands share: a format, codes, and where lists of them come from."""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refsim.cli import console
from refsim.cli.names import ARRAY_TYPE, FORMAT, weight_layout
from refsim.cli.options import option
from refsim.cli.spelled import number_in
from refsim.errors import Kind, RefsimError

if TYPE_CHECKING:
    from refsim.files import Stored
    from refsim.formats import ElementType, Format

MOST_WORDS = 1 << 16
MOST_TEXT = 1 << 24
_VALUE = re.compile(r"[^a-z_].*|[0-9a-f]*|nan|inf(inity)?|[^.]*:.*|.*[./].*", re.IGNORECASE | re.DOTALL)
"""A word that is no name of a format: a number, hexadecimal digits alone, a pattern of a format (f32:0x1) or a path."""
ARRAY_SUFFIXES = (".npy", ".npz", ".safetensors", ".bin", ".raw")


def format_field(*, arrays: bool = False) -> Any:
    """Return the field of -t FORMAT; it takes integers and f64 too where files are read as `arrays`."""
    type = ARRAY_TYPE if arrays else FORMAT
    return option("Number format, if the files do not name it.", "-t", "--format", type=type)


def kernels_field() -> Any:
    """Return the field of --kernels."""
    return option("Python file with KERNELS (default: [tool.refsim] or bundled).", "--kernels")


def only_format(argument: "Format | None", option: "Format | None") -> "Format":
    """Return the format given as an argument or by -t. Raise RefsimError for none, or for two that differ."""
    if argument is not None and option is not None and argument != option:
        raise RefsimError("usage", f"-t {option} contradicts {argument}", help=f"give {argument} or -t {option}")
    row = argument or option
    if row is None:
        raise missing_format()
    return row


def missing_format(*words: str, otherwise: str = "") -> RefsimError:
    """Return the error of a command without a format; its help repeats the user's command with one."""
    command = click.get_current_context().command_path
    from refsim.formats import FORMATS

    known = {name for row in FORMATS for name in (row.name, *row.aliases)}
    named = next((word for word in words if word.lower() in known), "e4m3")
    again = " ".join((command, named, *[_shortened(word) for word in words if word != named][:2]))
    return RefsimError(
        "missing-argument", "no number format is given", command, help=f"name it first or by -t: {again}{otherwise}"
    )


def leading_format(words: tuple[str, ...], option: "Format | None") -> "tuple[Format | None, tuple[str, ...]]":
    """Return the format and the remaining words. The first word may name the format, as in `decode e4m3 0x7e`; so may
    -t.

    Without -t, a first word that begins like a name (e4m4, nvfp4) is a misspelled format, unless it is a value or a
    file.
    """
    from refsim.formats import format_named

    if not words or number_in(words[0]) is not None:
        return option, words
    try:
        named = format_named(words[0])
    except RefsimError as error:
        is_value = _VALUE.fullmatch(words[0]) or os.path.exists(words[0])
        if option is None and (error.code == "ambiguous-name" or not is_value):
            raise
        return option, words
    if option is not None and _VALUE.fullmatch(words[0]):
        return option, words
    return only_format(named, option), words[1:]


def parse_code(word: str, row: "Format", where: str = "") -> int:
    """Return the code that a word spells in hexadecimal (0x7e), binary (0b0111_1110) or decimal; `where` is its option.

    Raises RefsimError bad-value for a word that is no number, and out-of-range for a code that the format does not
    have.
    """
    code = number_in(word)
    way = f"refsim encode -t {row} {_shortened(word)} gives the code of that value"
    if code is None:
        from refsim.files.access import names_near

        rule = "a code is hexadecimal (0x7e), binary (0b01111110) or decimal (126)"
        if re.fullmatch(r"[0-9a-fA-F]{1,8}", word):
            way = f"0x{word} if it is hexadecimal"
        elif not re.match(r"[-+]?(\.?[0-9]|nan|inf)", word):
            rule, way = f"{rule}, or a file of codes", names_near(Path(word), "give codes such as 0x7e")
        raise RefsimError("bad-value", f"{_shortened(word)!r} is not a code", where, rule, help=way)
    if not 0 <= code < row.code_limit:
        rule = f"codes of {row} have {row.bits + row.padding_bits} bits: 0 to {row.code_limit - 1:#x}"
        if word.startswith("0"):
            way = (
                f"name the format of these codes, such as {'e4m3' if code < 256 else 'bf16' if code < 65536 else 'f32'}"
            )
        raise RefsimError("out-of-range", f"{_shortened(word)} is not a code of {row}", where, rule, way)
    return code


def _shortened(word: str) -> str:
    return word if len(word) <= 40 else f"{word[:37]}..."


def codes_in(words: Iterable[str], row: "Format") -> list[int]:
    """Return the codes that the words of a command line stand for: codes, `-` for standard input, files of codes.

    A text file holds codes between blanks; refsim.files reads npy, npz, safetensors and raw files.
    """
    codes, otherwise = list[int](), f"refsim.decode(codes, {str(row)!r}) in Python takes arrays of any size"
    for word in words:
        if word == "-":
            codes += [parse_code(each, row) for each in _words(sys.stdin.buffer.read(), "standard input")]
        elif number_in(word) is None and names_array(word):
            stored = load_codes(Path(word), row)
            require_few(stored.codes.size, otherwise)
            codes += [int(code) for code in stored.codes.reshape(-1)]
        elif number_in(word) is None and os.path.isfile(word):
            from refsim.files.access import read_whole

            content = read_whole(Path(word), MOST_TEXT, "a list of codes")
            codes += [parse_code(each, row) for each in _words(content, word)]
        else:
            codes.append(parse_code(word, row))
        require_few(len(codes), otherwise)
    return codes


def require_few(count: int, otherwise: str) -> None:
    """Raise RefsimError for a list that is too long to print; `otherwise` is the help."""
    if count > MOST_WORDS:
        what = f"{count} items are too many for a printed answer"
        raise RefsimError("too-large", what, rule=f"at most {MOST_WORDS}", help=otherwise)


def place_and_key(path: Path) -> tuple[Path, str | None]:
    """Return the path and the key of `FILE:KEY`; a path that exists has no key."""
    place, colon, key = str(path).rpartition(":")
    return (Path(place), key) if colon and not os.path.exists(path) and os.path.exists(place) else (path, None)


def names_array(word: str) -> bool:
    """Return whether a word names arrays: a file by its suffix, `FILE:KEY`, a folder of tensors, or an index of files."""
    files = (*ARRAY_SUFFIXES, ".gguf", ".index.json")
    is_folder = os.path.isdir(word) and any(name.endswith(files[2:]) for name in os.listdir(word))
    return word.endswith(files) or is_folder or place_and_key(Path(word))[1] is not None


def load_codes(
    path: Path,
    row: "ElementType | None",
    key: str | None = None,
    option: str = "-t FORMAT",
    layout: str | None = None,
    *,
    scales: bool = False,
    windowed: bool = False,
) -> "Stored":
    """Return one tensor of a file. If the file leaves a choice, the help of the error names the deciding option.

    A quantized weight of a checkpoint gives its values in f32, or its `scales`, unless `row` names a format; the answer
    says by which layout. `windowed`: a large tensor is read as rows are asked for. `path` may be `FILE:KEY`, a folder,
    an index.json or a GGUF file.
    """
    from refsim import files

    place, named = place_and_key(path)
    if named is not None and key is not None and key != named:
        raise RefsimError("usage", f"--key {key} contradicts {path}", help="give one of them")
    key = key or named
    options = {"format-needed": f"give {option}", "key-needed": "give --key NAME"}
    try:
        if os.path.isdir(place) or place.suffix.lower() in (".safetensors", ".gguf", ".json"):
            from refsim.checkpoints.tensors import load_tensor

            layouts = (layout, weight_layout())
            stored, told = load_tensor(place, row, key, *layouts, scales=scales, windowed=windowed)
            if told:
                console.note(told)
            if stored is not None:
                return stored
        return files.load(place, format=row, key=key)
    except RefsimError as error:
        error.help = options.get(error.code, error.help)
        raise


def require_one_format(a: Path, a_format: "ElementType", b: Path, b_format: "ElementType") -> None:
    """Raise RefsimError unless two files hold one format."""
    if a_format != b_format:
        what = f"{a} holds {a_format}, {b} holds {b_format}"
        raise RefsimError("format-mismatch", what, help="-t FORMAT where one of them is meant otherwise")


def load_named(path: Path, key: str | None = None) -> "Stored | None":
    """Return one tensor of a file that stores its format, or None for a file that does not."""
    try:
        return load_codes(path, None, key)
    except RefsimError as error:
        if error.code != "format-needed":
            raise
        return None


def words_in(words: Iterable[str]) -> Iterator[str]:
    """Yield the words, with the words of standard input in the place of `-`."""
    for word in words:
        if word == "-":
            yield from _words(sys.stdin.buffer.read(), "standard input")
        else:
            yield word


def refuse_options(words: Iterable[str]) -> None:
    """Raise click's error for a word that is an option; a value may begin with a minus."""
    for word in words:
        if word.startswith("--") or word in ("-h", "-t", "-o"):
            raise click.NoSuchOption(word, ctx=click.get_current_context())


def _words(content: bytes, where: str) -> list[str]:
    try:
        return content.decode().split()
    except UnicodeDecodeError as problem:
        what = f"byte {problem.start} is not text"
        help = f"arrays of codes are read by their suffix: {', '.join(ARRAY_SUFFIXES)}"
        raise RefsimError("bad-value", what, where, help=help, kind=Kind.UNREADABLE) from problem
