"""Second definitions that no kernel declares: parts of what refsim's own oracles return are computed again.

The parts are drawn while the oracle of a kernel runs. `refsim.reference` computes them again, without any code of the
oracles. It has no definition for special blocks, stochastic rounding, some recipes and rows beyond LONGEST_ROW.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import BF16, format_named
from refsim.reference import fp8_quantize, row_functions
from refsim.reference.group_quantize import group_quantize
from refsim.reference.rational_float import GRIDS
from refsim.reference.two_level_quantize import ordinary_block
from refsim.scaling import RECIPES
from refsim.typed_arrays import codes_with_format, format_held, held_codes

MOST_SAMPLES, DRAWN, DRAWN_ELEMENTS, LONGEST_ROW = 16, 2, 16, 1 << 12
_OF_NOTHING = ("largest magnitude", "FP8 quantizer")  # they say something of an empty array
Sample = tuple[str, list[int], Callable[[], Any]]
"""The name of an oracle, codes of its result, and a function that computes them again; -1 is not compared."""
Given = Mapping[str, Any]
Codes = NDArray[Any]
Taken = tuple[tuple[Any, ...], Callable[[], Any]]


def take_samples(samples: list[Sample], name: str, given: Given, made: Any) -> None:
    """Add drawn parts of the result of an oracle's call: blocks, rows or elements, and then their scale."""
    x = np.asarray(next(iter(given.values())))
    format = given.get("input_format", given.get("format")) or (None if format_held(x.dtype) else BF16)
    codes, form = held_codes(x, format)
    random = np.random.default_rng([*x.ravel()[:64].tobytes()])
    for _ in range(DRAWN if len(samples) < MOST_SAMPLES and (x.size or name in _OF_NOTHING) else 0):
        got, again = _TAKEN[name](given, made, np.asarray(codes), form.name, random)
        samples.append((name, [int(code) for part in got for code in _bits(part)], again))


def _of_block(given: Given, made: Any, codes: Codes, form: str, random: np.random.Generator) -> Taken:
    place, part = _place(made.scales.shape, made.block, random)
    grid, level = GRIDS[form], given["tensor_scale"]
    name = str(made.recipe) if made.recipe in RECIPES and given["random"] is None else ""
    amax = grid.number(int((codes & (grid.sign - 1)).max()))
    block = [grid.number(code) for code in codes[part].ravel().tolist()]
    again = partial(ordinary_block, block, amax, name, str(made.format), level and float(level))
    return (made.codes[part], made.scales[place]), again


def _of_group(given: Given, made: Any, codes: Codes, form: str, random: np.random.Generator) -> Taken:
    place, part = _place(made.scales.shape, made.group, random)
    some = _some(codes[part], form, random)
    row = [fp8_quantize.single(code, form) for code in codes[part].ravel()[some].tolist()]
    divides, ignores_nan = given["quotient"] == "divide", given["nan"] == "ignored"
    rules = {"divides": divides, "ignores_nan": ignores_nan, "rounds_up": made.kind.is_power_of_two}
    scale = _bits(made.scales[place])
    scale = scale.astype(np.uint32) << 23 if scale.itemsize == 1 else scale  # E8M0
    sizes = (1, len(row)), str(made.format), _pattern(given["eps"])
    return (_bits(made.codes[part])[some], scale), partial(group_quantize, [row], *sizes, **rules)


def _of_amax(given: Given, made: Any, codes: Codes, form: str, random: np.random.Generator) -> Taken:
    members = codes.ravel()[_some(codes, form, random)].tolist()
    return (made,), lambda: [fp8_quantize.amax(members, form)]


def _of_tensor(given: Given, made: Any, codes: Codes, form: str, random: np.random.Generator) -> Taken:
    some = _some(codes, form, random)
    values = [fp8_quantize.single(code, form) for code in codes.ravel()[some].tolist()]
    amax = None if given["amax_bits"] is None else int(given["amax_bits"])
    named = format_named(given["to"]).name, _pattern(given["eps"]), amax
    return (_bits(made[0])[some], made[1]), partial(fp8_quantize.quantize, values, *named)


def _of_numbers(given: Given, made: Any, codes: Codes, form: str, random: np.random.Generator) -> Taken:
    some = random.integers(0, codes.size, DRAWN_ELEMENTS)
    members, scale, to = codes.ravel()[some].tolist(), _pattern(given["scale"]), format_named(given["to"]).name
    return (_bits(made)[some],), lambda: [fp8_quantize.dequantized(each, form, scale, to) for each in members]


def _of_row(given: Given, made: Any, codes: Codes, form: str, random: np.random.Generator) -> Taken:
    at = random.integers(len(codes))
    row, number = codes[at].tolist(), _pattern(given.get("eps", given.get("scale")))
    again: Callable[[], Any] = partial(row_functions.softmax, row, number, form)
    if "w" in given:
        w = codes_with_format("w", given["w"], form)[0].tolist()
        gate = None if given["gate"] is None else codes_with_format("gate", given["gate"], form)[0][at].tolist()
        again = partial(row_functions.rms_norm, row, w, number, form, gate)
    return (made[at],), again if len(row) <= LONGEST_ROW else list


_TAKEN: Mapping[str, Callable[[Given, Any, Codes, str, np.random.Generator], Taken]] = {
    "block quantizer": _of_block,
    "group quantizer": _of_group,
    "largest magnitude": _of_amax,
    "FP8 quantizer": _of_tensor,
    "FP8 dequantizer": _of_numbers,
    "softmax": _of_row,
    "RMSNorm": _of_row,
}


def _place(
    scales: tuple[int, ...], group: tuple[int, int], random: np.random.Generator
) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Return the drawn place of a scale, and the slices of its elements."""
    place = tuple(int(random.integers(extent)) for extent in scales)
    extents = zip(place[-2:], group[-len(place) :], strict=True)
    return place, (*place[:-2], *(slice(at * each, (at + 1) * each) for at, each in extents))


def _some(codes: Codes, form: str, random: np.random.Generator) -> list[int]:
    """Return flat places: of a NaN if there is one, of the largest number, and drawn ones."""
    if not codes.size:
        return []
    magnitudes = codes.ravel() & (GRIDS[form].sign - 1)
    numbers = np.where(magnitudes > GRIDS[form].infinity, 0, magnitudes)
    return [int(magnitudes.argmax()), int(numbers.argmax()), *random.integers(0, codes.size, DRAWN_ELEMENTS).tolist()]


def _bits(codes: Any) -> Codes:
    array = np.ascontiguousarray(codes)
    return array.view(f"u{array.itemsize}").ravel()


def _pattern(number: Any) -> int:
    with np.errstate(all="ignore"):
        return int(_bits(np.float32(number))[0])
