"""Recipes: small frozen dataclasses that print on one line, rebuild equal tensors everywhere and convert to JSON.

A tensor's contents are a fill: a name, a generator, and the codes or values drawn from it. A saved case holds a fill's
name and a seed, so a fill must never change: new contents need a new name. Operands for sums of products are drawn in
`refsim.reference.operands`, operands of recorded GPU runs in `refsim.silicon.tensor_probe`. All three take the
special values of a format from `special_codes`.
"""

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode, encode
from refsim.errors import RefsimError, check_named, unknown
from refsim.formats import Format, format_named
from refsim.integers import is_whole
from refsim.kernels import Launcher
from refsim.reference.operands import special_codes

# Fills: (generator, n, format entry, target entry) -> codes, shape (n,).

Fill = Callable[[np.random.Generator, int, Format, Format], NDArray[Any]]


def _finite(values: NDArray[Any], row: Format) -> NDArray[Any]:
    """Return the codes of values, saturated at the largest value: infinities have their own fill."""
    return encode(values, row, overflow="saturate")


def _one_hot(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    values = np.zeros(n)
    values[generator.integers(n)] = 1.0
    return _finite(values, row)


def _log_uniform(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    low, high = np.log2(row.quantum), np.log2(row.max_value)
    return _finite(np.exp2(generator.uniform(low, high, n)) * generator.choice([-1.0, 1.0], n), row)


def _subnormals(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    magnitudes = generator.integers(1, 1 << max(row.mantissa_bits, 1), n) << row.padding_bits
    return magnitudes | row.sign_mask * generator.integers(0, 2, n)


def _specials(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    codes = np.array(special_codes(row), row.code_dtype)
    return np.take(codes, (np.arange(n) + generator.integers(len(codes))) % len(codes))


def _ties(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    """Return midpoints of the target and their two neighbors, times a power of two; element 0 is the target's maximum.

    With this maximum as amax, the scale is the inverse power of two, so that the scaled values are exact ties again.
    """
    largest_shift = min(4, int(np.floor(np.log2(row.max_value / target.max_value))))
    shift = 2.0 ** int(generator.integers(min(-4, largest_shift), largest_shift + 1))
    magnitudes = np.arange(target.max_code >> target.padding_bits) << target.padding_bits
    values = decode(magnitudes.astype(target.code_dtype), target)
    gaps = np.append(values[1:], target.max_value) - values
    codes = _finite((values + gaps / 2)[generator.integers(len(values), size=n)] * shift, row).astype(np.int64)
    codes = np.maximum(codes + (generator.integers(-1, 2, n) << row.padding_bits), 0)
    codes = codes | row.sign_mask * generator.integers(0, 2, n)
    codes[0] = int(_finite(np.full(1, target.max_value * shift), row)[0])
    return codes


def _near_overflow(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    """Return elements around the target's largest value, in half of the draws mixed with the format's largest."""
    around_target = _finite(target.max_value * generator.uniform(0.9, 1.3, n), row).astype(np.int64)
    around_own = (row.max_code >> row.padding_bits) - generator.integers(0, 4, n) << row.padding_bits
    own = generator.integers(0, 2, n) if generator.integers(0, 2) else np.zeros(n, np.int64)
    return np.where(own, around_own, around_target) | row.sign_mask * generator.integers(0, 2, n)


FILLS: dict[str, Fill] = {
    "zeros": lambda generator, n, row, target: np.zeros(n, row.code_dtype),
    "ones": lambda generator, n, row, target: _finite(np.ones(n), row),
    "one-hot": _one_hot,
    "gaussian": lambda generator, n, row, target: _finite(generator.standard_normal(n), row),
    "log-uniform": _log_uniform,
    "subnormals": _subnormals,
    "bits": lambda generator, n, row, target: generator.integers(0, row.code_limit, n, dtype=np.uint64),
    "specials": _specials,
    "ties": _ties,
    "near-overflow": _near_overflow,
}


# Fills of matrices: (generator, rows, columns) -> values, shape (rows, columns).

RowFill = Callable[[np.random.Generator, int, int], NDArray[np.float64]]


def _narrow(generator: np.random.Generator, rows: int, columns: int) -> NDArray[Any]:
    """Return values of one binade and both signs: sums round at every step, and cancel."""
    return np.asarray(generator.uniform(1, 2, (rows, columns)) * generator.choice([-1.0, 1.0], (rows, columns)))


def _one_hot_rows(generator: np.random.Generator, rows: int, columns: int) -> NDArray[Any]:
    """Return a single one in each row: a product then picks columns, so that a misplaced column is visible."""
    values = np.zeros((rows, columns))
    values[np.arange(rows), generator.integers(columns, size=rows)] = 1.0
    return values


def _distinct(generator: np.random.Generator, rows: int, columns: int) -> NDArray[Any]:
    """Return different numbers from 1 to 15.9 for 512 neighbors, so that a scale of another group is visible."""
    place = np.arange(rows * columns).reshape(rows, columns) + generator.integers(512)
    return np.asarray((1 + place % 128 / 128) * 2.0 ** (place // 128 % 4))


ROW_FILLS: dict[str, RowFill] = {"narrow": _narrow, "one-hot rows": _one_hot_rows, "distinct": _distinct}


__all__ = [
    "COVERING",
    "EDGE_SIZES",
    "LARGE",
    "MAX_BLOCKS",
    "MAX_ELEMENTS",
    "MAX_MISALIGN",
    "Launch",
    "Tensor",
    "check_patches",
    "corpus_tensors",
    "from_json",
    "in_range",
    "of_type",
    "one_of",
    "spelled",
    "to_json",
]
__dir__ = partial(sorted, __all__)


Codes = NDArray[np.unsignedinteger]
MAX_ELEMENTS = 1 << 28
MAX_MISALIGN = 64
MAX_BLOCKS = 1 << 16


def in_range(name: str, value: Any, low: int, high: int) -> None:
    """Raise RefsimError unless `value` is an integer from `low` to `high`; for the `__post_init__` of a recipe."""
    if not isinstance(value, int) or not is_whole(value, low, high):  # JSON cannot hold NumPy integers
        raise RefsimError("bad-recipe", f"{name} must be an integer in {low}..{high}, not {value!r}")


def of_type(name: str, value: Any, type: type) -> None:
    """Raise RefsimError unless a field of a recipe is a `type`; for recipes within recipes and for truth values."""
    if not isinstance(value, type):
        raise RefsimError("bad-recipe", f"{name} must be {type.__name__}, not {value!r:.60}")


def check_patches(patches: Any) -> None:
    """Raise RefsimError unless `patches` are pairs of an index and a code."""
    of_type("patches", patches, tuple)
    for patch in patches:
        if not isinstance(patch, tuple) or len(patch) != 2:
            raise RefsimError("bad-recipe", f"a patch is {patch!r:.60}", rule="(index, code)")
        in_range("patch index", patch[0], 0, (1 << 63) - 1)
        in_range("patch code", patch[1], 0, (1 << 64) - 1)


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise RefsimError, with the nearest names, unless `value` is one of `allowed`."""
    check_named(name, value, allowed)


def spelled(recipe: Any) -> str:
    """Return a recipe on one line without fields at their default; patches and fields called ..._bits are in hex."""
    parts = []
    for f in fields(recipe):
        value = getattr(recipe, f.name)
        if _is_default(value, f.default):
            continue
        if is_dataclass(value):
            text = spelled(value)
        elif f.name.endswith("bits") and isinstance(value, int):
            text = hex(value)
        elif f.name == "patches":
            text = f"({' '.join(f'({index}, {code:#x}),' for index, code in value)})"
        else:
            text = repr(value)
        parts.append(f"{f.name}={text}")
    return f"{type(recipe).__name__}({', '.join(parts)})"


def _is_default(value: Any, default: Any) -> bool:
    """Return whether a field is at its default; False for arrays, whose comparison has no single truth value."""
    try:
        return bool(value == default)
    except ValueError:
        return False


@dataclass(frozen=True, repr=False)
class Tensor:
    """A one-dimensional tensor of codes, rebuilt from its seed: Tensor(n=2049, format='bf16', fill='bits', seed=3).

    `fill` is a name of FILLS; "ties" and "near-overflow" use the format `target`. `patches` are (index, code) set
    afterwards. `misalign_elements` is the offset from the natural alignment in elements. Raises RefsimError for sizes
    beyond 2^28, unknown names and codes that the format does not have.
    """

    n: int
    format: str
    fill: str = "zeros"
    seed: int = 0
    target: str = "e4m3"
    patches: tuple[tuple[int, int], ...] = ()
    misalign_elements: int = 0

    def __post_init__(self) -> None:
        in_range("n", self.n, 0, MAX_ELEMENTS)
        in_range("seed", self.seed, 0, (1 << 64) - 1)
        in_range("misalign_elements", self.misalign_elements, 0, MAX_MISALIGN)
        row = format_named(self.format)
        format_named(self.target)
        one_of("fill", self.fill, tuple(sorted(FILLS)))
        check_patches(self.patches)
        for index, code in self.patches:
            in_range("patch index", index, 0, self.n - 1)
            in_range("patch code", code, 0, row.code_limit - 1)

    def __repr__(self) -> str:
        return spelled(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(spelled(self))  # or Hypothesis prints a line for each field

    @property
    def misalign_bytes(self) -> int:
        """Return the offset from the natural alignment in bytes."""
        return self.misalign_elements * format_named(self.format).code_dtype.itemsize

    def codes(self) -> Codes:
        """Return the codes, shape (n,), in the unsigned dtype of the format."""
        row = format_named(self.format)
        generator = np.random.Generator(np.random.Philox(self.seed))
        codes = np.zeros(0, row.code_dtype)
        if self.n:
            codes = FILLS[self.fill](generator, self.n, row, format_named(self.target)).astype(row.code_dtype)
        for index, code in self.patches:
            codes[index] = code
        return codes


@dataclass(frozen=True, repr=False)
class Launch:
    """A one-dimensional launch: `threads` per block; `blocks` = 0 gives each thread `per_thread` elements.

    Launch() of 10,000 elements is 3 blocks of 256 threads; a kernel with a grid-stride loop must be right with any
    launch.
    """

    threads: int = 256
    blocks: int = 0
    per_thread: int = 16

    def __post_init__(self) -> None:
        in_range("threads", self.threads, 32, 1024)
        in_range("blocks", self.blocks, 0, MAX_BLOCKS)
        in_range("per_thread", self.per_thread, 1, 1024)
        if self.threads % 32:
            raise RefsimError("bad-recipe", f"{self.threads} threads", rule="a block is a multiple of 32 threads")

    def __repr__(self) -> str:
        return spelled(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(spelled(self))  # or Hypothesis prints a line for each field

    def run(self, launcher: Launcher, entry: str, n: int, *args: object) -> None:
        """Launch an entry for `n` elements; the grid has at least one block."""
        blocks = self.blocks or min(MAX_BLOCKS, max(1, -(-n // (self.per_thread * self.threads))))
        launcher.launch(entry, (blocks,), (self.threads,), args)


COVERING = Launch()
EDGE_SIZES = (0, 1, 7, 8, 9, 2047, 2048, 2049)
LARGE = (1 << 20) + 3


def corpus_tensors(format: str, target: str = "e4m3", *, large: bool = True) -> tuple[Tensor, ...]:
    """Return the first tensors of every campaign: each edge size, each fill, odd offsets, one beyond 2^20 elements.

    The one-hot tensor also has the largest value, and behind it a NaN at each usual stride of threads.
    """
    fills = list(FILLS)
    edges = [
        Tensor(n, format, ("ties", "bits")[at % 2], at, target, misalign_elements=at % 3)
        for at, n in enumerate(EDGE_SIZES)
    ]
    row = format_named(format)
    # A running maximum that a NaN resets forgets the largest value, whichever stride a thread takes from element 5 on.
    holes = (
        () if row.nan_code is None else ((5, row.max_code), *((5 + step, row.nan_code) for step in (32, 64, 128, 256)))
    )
    patched = {"one-hot": holes}
    filled = [Tensor(267, format, fill, at, target, patched.get(fill, ()), at % 2) for at, fill in enumerate(fills)]
    return (*edges, *filled, *([Tensor(LARGE, format, "log-uniform", 1, target)] if large else []))


# JSON: a Kernel names the recipe class, so that a file never chooses which class is built.


def to_json(recipe: Any) -> Any:
    """Return a recipe as dictionaries, lists and numbers, without fields at their default."""
    if is_dataclass(recipe) and not isinstance(recipe, type):
        held = [(f, getattr(recipe, f.name)) for f in fields(recipe)]
        return {f.name: to_json(each) for f, each in held if f.default is MISSING or not _is_default(each, f.default)}
    if isinstance(recipe, (tuple, list)):
        return [to_json(part) for part in recipe]
    if recipe is None or isinstance(recipe, (bool, int, float, str)):
        return recipe
    raise RefsimError("bad-recipe", f"a recipe holds numbers, strings, tuples and recipes, not {recipe!r}")


def from_json(kind: Any, record: Any, where: str = "problem") -> Any:
    """Return the recipe of class `kind` that `to_json` wrote; raise RefsimError for a wrong key or type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_from_json(kind, record, where)
    if origin in (typing.Union, types.UnionType):
        if record is None and type(None) in arguments:
            return None
        return from_json(next(part for part in arguments if part is not type(None)), record, where)
    if origin is tuple:
        if not isinstance(record, list):
            raise _misfit(where, "a list", record)
        kinds = arguments[:1] * len(record) if arguments[-1] is Ellipsis else arguments
        if len(kinds) != len(record):
            raise _misfit(where, f"a list of {len(kinds)}", record)
        places = (f"{where}[{place}]" for place in range(len(record)))
        return tuple(from_json(*each) for each in zip(kinds, record, places, strict=True))
    if kind is float and type(record) is int:
        return float(record)
    if kind not in (int, float, str, bool) or type(record) is not kind:
        raise _misfit(where, getattr(kind, "__name__", str(kind)), record)
    return record


def _dataclass_from_json(kind: type, record: Any, where: str) -> Any:
    if not isinstance(record, Mapping):
        raise _misfit(where, f"the fields of {kind.__name__}", record)
    hints, known = typing.get_type_hints(kind), [f.name for f in fields(kind)]
    for key in record:
        if key not in known:
            raise unknown(f"field of {kind.__name__}", str(key), known, where=where)
    missing = [f.name for f in fields(kind) if f.name not in record and f.default is MISSING]
    if missing:
        raise RefsimError("bad-file", f"{kind.__name__} needs {missing[0]!r}", where=where)
    return kind(**{key: from_json(hints[key], value, f"{where}.{key}") for key, value in record.items()})


def _misfit(where: str, wanted: str, record: Any) -> RefsimError:
    return RefsimError("bad-recipe", f"expected {wanted}, found {str(record)[:80]!r}", where=where)
