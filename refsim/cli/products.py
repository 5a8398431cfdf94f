"""Operands of a matrix product on the command line: lists of codes and values, or files."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.cli.arguments import load_codes, names_array, words_in
from refsim.cli.product_options import MmaOptions, known
from refsim.cli.values import code_of
from refsim.errors import RefsimError, counted
from refsim.formats import F16, F32, F64, FORMATS, S4, S32, U4, ElementType, Format, element_named, float_named
from refsim.matrix_opcodes import matrix_opcode
from refsim.numerics.calls import Arguments
from refsim.numerics.profiles import PROFILES, chip, profile, rows_of, unit_named, unit_rank
from refsim.numerics.rows import Profile, Unit
from refsim.targets import lacking

MOST_LISTED = 1 << 12
_KEYWORDS = ("unit", "target", "k", "a_format", "b_format", "d_format", "a_scale", "b_scale", "scale_format")
_FIFTH_GENERATION = re.compile(r"tcgen05\.mma\b[\w.:]*\.kind::(\w+)")


@dataclass(frozen=True)
class MmaArguments(Arguments):
    """The arguments of numerics.mma: codes a (M, K), b (N, K), c (M, N) as floats or integers, scales and their types.

    `given`: how many products a list had before zeros filled the K of the instruction, None for files. `chosen`:
    refsim chose the unit.
    """

    a: NDArray[Any]
    b: NDArray[Any]
    c: NDArray[Any] | None
    a_scale: NDArray[Any] | None
    b_scale: NDArray[Any] | None
    scale_format: Format | None
    row: Profile
    k: int
    unit: Unit
    target: str
    given: int | None = None
    chosen: bool = False

    def at(self, row: int, col: int) -> "MmaArguments":
        """Return the product of one row of A and one row of B, as arguments of shape 1 x 1."""
        m, n = self.a.shape[-2], self.b.shape[-2]
        for place, extent, what in ((row, m, "row"), (col, n, "column")):
            if not 0 <= place < extent:
                raise RefsimError(
                    "out-of-range", f"{what} {place} is outside 0..{extent - 1}", f"the result is {m} x {n}"
                )

        def one(array: NDArray[Any] | None, place: int) -> NDArray[Any] | None:
            """Return one row of an array, or None."""
            return None if array is None else array[place : place + 1]

        c = None if self.c is None else self.c[row : row + 1, col : col + 1]
        return replace(
            self,
            a=self.a[row : row + 1],
            b=self.b[col : col + 1],
            c=c,
            a_scale=one(self.a_scale, row),
            b_scale=one(self.b_scale, col),
        )

    @property
    def d_format(self) -> ElementType:
        """Return the type of the result."""
        return self.row.d_format

    def arguments(self, *names: str) -> dict[str, Any]:
        """Return keyword arguments of a function of refsim.numerics: those of `names`, or all."""
        return {name: getattr(self, name) for name in names or (*_KEYWORDS, "negate_a", "negate_b")}


def read(asked: MmaOptions) -> MmaArguments:
    """Return the product that a command line describes.

    Zeros extend two lists to the K of the instruction. Raises RefsimError for words that are no operands, for a
    combination without known arithmetic, and for shapes that do not fit.
    """
    asked = _of_opcode(asked)
    if asked.unit is not None:
        known(asked.unit, units(), "unit")
    chip(asked.target)  # raises RefsimError for a target without entries
    a, a_type = _operand(asked.a, _type(asked.a_format), "--a", asked.key)
    b, b_type = _operand(asked.b, _type(asked.b_format), "--b", asked.key)
    c: NDArray[Any] | str | None = asked.c
    c_type: ElementType | None = None
    if asked.c is not None and names_array(asked.c):
        c, c_type = _from_file(asked.c, _type(asked.d_format), asked.key)
    unit = unit_named(asked.unit or _usual_unit(asked, a_type, b_type))
    if (refused := _unit_refused(asked.target, unit, a_type, b_type)) is not None:
        raise refused
    d_type = _type(asked.d_format) or c_type or _only_result(asked.target, unit, a_type, b_type)
    row = profile(asked.target, unit, a_type, b_type, d_type, asked.k)
    k, given = asked.k or max(row.k), None
    if not names_array(asked.a) and not names_array(asked.b):
        if a.shape[1] != b.shape[1]:
            raise RefsimError("bad-shape", f"--a has {counted(a.shape[1], 'element')}, --b has {b.shape[1]}", row.name)
        given = a.shape[1]
        missing = -given % k
        a, b = (np.pad(codes, ((0, 0), (0, missing))) for codes in (a, b))
    if not row.scales and (asked.a_scale or asked.b_scale or asked.scale_format):
        raise RefsimError("bad-scale", f"{row.unit} takes no scales", row.name, help="leave out the options of scales")
    given_type = None if asked.scale_format is None else float_named(asked.scale_format)
    scale_type = given_type or _only_scale(row)
    (a_scale, a_scale_type), (b_scale, b_scale_type) = (
        _scale(word, scale_type, option, asked.key)
        for word, option in ((asked.a_scale, "--a-scale"), (asked.b_scale, "--b-scale"))
    )
    scaled = given_type or a_scale_type or b_scale_type
    m, n = a.shape[-2], b.shape[-2]
    for array, option, wanted in ((a_scale, "--a-scale", m), (b_scale, "--b-scale", n)):
        if array is not None and array.shape[0] != wanted:
            raise RefsimError(
                "bad-shape", f"{option} has {counted(array.shape[0], 'row')}, its operand {wanted}", row.name
            )
    c_codes = None if c is None else _accumulator(c, row, (m, n))
    scale_format = None if scaled is None else float_named(scaled)
    scales = a_scale, b_scale, scale_format, asked.negate_a, asked.negate_b
    operands = a, b, c_codes, a_type, b_type, *scales
    return MmaArguments(*operands, row, k, row.unit, asked.target, given, asked.unit is None)


def _of_opcode(asked: MmaOptions) -> MmaOptions:
    """Replace an opcode that stands for the unit by its unit, types, K and kind of scales."""
    if kind := _FIFTH_GENERATION.match(asked.unit or ""):
        return replace(asked, unit=f"tcgen05.{kind[1]}")
    opcode = matrix_opcode(asked.unit or "")
    if opcode is None or opcode.family == "wmma":
        return asked
    if opcode.sparse:
        what = "a sparse A comes with metadata, which is not asked for here"
        help = "refsim.numerics.mma(..., metadata=positions), or the dense opcode of half the K on what is stored"
        raise RefsimError("usage", what, asked.unit or "", help=help)
    said: dict[str, Any] = {f"{operand}_format": opcode.types[operand] for operand in ("a", "b", "d")}
    said["k"] = opcode.k
    for name, value in said.items():
        given = getattr(asked, name)
        if given is not None and given != value:
            option = f"--{name.replace('_', '-')}"
            raise RefsimError(
                "usage", f"{option} {given} contradicts the opcode", asked.unit or "", help=f"leave out {option}"
            )
    return replace(asked, unit=opcode.unit, **said)


def _usual_unit(asked: MmaOptions, a: ElementType, b: ElementType) -> str:
    """Return the unit that kernels of a target use for these types: a warpgroup's or tensor memory's before a warp's."""
    scaled = any((asked.a_scale, asked.b_scale, asked.scale_format))
    refused = {row: _unit_refused(asked.target, row.unit, a, b) for row in rows_of(asked.target)}
    here = [row for row, refusal in refused.items() if refusal is None]
    fitting = [row for row in here if a in row.a_formats and b in row.b_formats and bool(row.scales) == scaled]
    if asked.scale_format is not None:
        named = float_named(asked.scale_format)
        fitting = [row for row in fitting if any(format is named for format, _ in row.scales)] or fitting
    if not here:  # sm_120 without its a has no unit at all for 4 bits
        fit = (refusal for row, refusal in refused.items() if a in row.a_formats and b in row.b_formats)
        raise next(refusal for refusal in (*fit, *refused.values()) if refusal is not None)
    return min((row.unit for row in fitting or here), key=unit_rank)


def _unit_refused(target: str, unit: str, *types: ElementType) -> RefsimError | None:
    """Return the error of a unit that a target lacks, or None. sm_90 has no wgmma; 4 and 6 bits need a kind of mma."""
    if not target.startswith("sm_"):
        return None
    is_narrow = any(type.code_bits < 8 and not type.is_integer for type in types)
    return lacking(target, "mma.kind::f8f6f4" if is_narrow and unit == "mma.sync" else unit)


def _type(word: str | None) -> ElementType | None:
    return None if word is None else element_named(word)


def _operand(
    word: str, type: ElementType | None, option: str, key: str | None, needed: str = "-t FORMAT"
) -> tuple[NDArray[Any], ElementType]:
    """Return the codes of an operand as a matrix of (rows, K), and their type; `needed` gives the type of a list."""
    if names_array(word):
        return _from_file(word, type, key)
    if type is None:
        raise RefsimError("format-needed", f"{option} is a list of codes or values", help=f"give {needed}")
    return _listed(word, type, option), type


def _listed(word: str, type: ElementType, option: str) -> NDArray[Any]:
    words = " ".join(words_in([word])).replace(",", " ").split()
    if not 0 < len(words) <= MOST_LISTED:
        raise RefsimError(
            "bad-shape", f"{option} has {counted(len(words), 'element')}", rule=f"1 to {MOST_LISTED}, or a file"
        )
    return np.array([[_code(each, type, option) for each in words]], type.code_dtype)


def _code(word: str, type: ElementType, option: str) -> int:
    try:
        return code_of(word, type)
    except RefsimError as error:
        error.where = error.where or option
        raise


def _from_file(word: str, type: ElementType | None, key: str | None) -> tuple[NDArray[Any], ElementType]:
    if type is not None and type not in FORMATS:
        what = f"files of codes do not hold {type}"
        raise RefsimError("unsupported-format", what, word, help="give a list, or call refsim.numerics.mma")
    stored = load_codes(Path(word), None if type is None else float_named(type), key)
    codes = stored.codes.reshape(1, -1) if stored.codes.ndim == 1 else stored.codes
    if codes.ndim != 2 or not codes.size:
        raise RefsimError("bad-shape", f"the file holds shape {stored.codes.shape}", word, "a matrix of rows x K")
    return codes, stored.format


def _accumulator(c: NDArray[Any] | str, row: Profile, shape: tuple[int, int]) -> NDArray[Any]:
    """Return C as an array of the result's type and shape; a single value fills it."""
    dtype, type = row.d_dtype, row.d_format
    if not isinstance(c, str):
        if c.shape != shape:
            raise RefsimError("bad-shape", f"--c has shape {c.shape}, the result {shape}", type.name)
        return np.ascontiguousarray(c).view(dtype)
    return np.full(shape, _code(c, type, "--c"), type.code_dtype).view(dtype)


def _scale(
    word: str | None, type: ElementType | None, option: str, key: str | None
) -> tuple[NDArray[Any] | None, ElementType | None]:
    if word is None:
        return None, None
    return _operand(word, type, option, key, "--scale-format e8m0 or ue4m3")


def _only_scale(row: Profile) -> Format | None:
    found = {format for format, _ in row.scales}
    return found.pop() if len(found) == 1 else None


def _only_result(target: str, unit: str, a: ElementType, b: ElementType) -> ElementType:
    """Return the only result type that these operands have on a unit, or f32 where there is a choice."""
    found = {row.d_format for row in rows_of(target, unit) if a in row.a_formats and b in row.b_formats}
    return found.pop() if len(found) == 1 else F32


def units() -> list[str]:
    """Return the units that have an entry: mma.sync, wgmma, ..."""
    return list(dict.fromkeys(row.unit for row in PROFILES))


def targets() -> list[str]:
    """Return the chips that have an entry: sm_70, ..."""
    return list(dict.fromkeys(row.target for row in PROFILES))


def operand_types() -> list[str]:
    """Return the operand types of all entries."""
    return list(dict.fromkeys(format.name for row in PROFILES for format in (*row.a_formats, *row.b_formats)))


def explained_types() -> list[str]:
    """Return the operand types of all entries, and the 4-bit integers of quantized weights."""
    return [*operand_types(), *(row.name for row in (S4, U4))]


def result_types() -> list[str]:
    """Return the result types of all entries: f32, f16, ..."""
    return [format.name for format in (F32, F16, F64, S32) if any(row.d_format is format for row in PROFILES)]


def scale_types() -> list[str]:
    """Return the types of scales of all entries: e8m0, ue4m3."""
    return list(dict.fromkeys(format.name for row in PROFILES for format, _ in row.scales))
