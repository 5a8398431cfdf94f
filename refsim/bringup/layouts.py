"""The layout of fragments on a device: operands with a single 1 go in, and the place where it comes out is read.

ldmatrix and stmatrix move the numbers of shared-memory slots (gpu/probes/layouts.cu). Tensor cores multiply a 1 at one
place of each row of A with random B, so D shows the k and the row that were multiplied. The fragments of refsim.layouts
pack and unpack, so a wrong fragment cannot give the right matrix. Operands of wgmma begin anywhere in a swizzle atom.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.bringup import tensor_cores
from refsim.bringup.explain import Products
from refsim.bringup.numerics import on_device
from refsim.bringup.report import Case, Difference, Task, hashed, outcome
from refsim.bringup.tensor_cores import TensorCoreInstruction
from refsim.device import Device
from refsim.formats import ElementType, Integer
from refsim.layouts.families import fragment
from refsim.silicon.operand_starts import START_FORMS, StartForm, paired_words
from refsim.silicon.tensor_probe import coded

PROBES = tensor_cores.KERNEL_FILE.parent / "layouts.cu"
SLOTS = 40
ROUNDS = 2
_MATRICES = [
    (f"{way}matrix_x{count}{trans}", f"{way}matrix.m8n8.x{count}.b16{trans.replace('_', '.')}", count)
    for way in ("ld", "st")
    for trans in ("", "_trans")
    for count in (1, 2, 4)
]


def fingerprint() -> str:
    """Return the hash of the files that decide the suite's results."""
    return hashed([PROBES, tensor_cores.KERNEL_FILE])


def tasks(device: Device) -> Sequence[Task]:
    """Return the cases of ldmatrix, stmatrix, wgmma's operands in shared memory, then every tensor-core instruction."""
    found = [Task(name, partial(_matrix_case, device, entry, name, count)) for entry, name, count in _MATRICES]
    starts = START_FORMS if device.target == "sm_90a" else ()
    found += [Task(f"starts of wgmma operands, {form.name}", partial(_starts_case, device, form)) for form in starts]
    instructions = tensor_cores.instructions(device.target)
    return found + [Task(each.name, partial(product_case, each, on_device(device, each))) for each in instructions]


# ---- ldmatrix, stmatrix ----------------------------------------------------------------------------------------------


@contextmanager
def matrix_part() -> Iterator[Path]:
    """Yield a file with the part of layouts.cu before TMA, without its generated products; it exists in the block only.
    It lies in new folders, so that no other files next to it are taken as bundled PTX."""
    with tempfile.TemporaryDirectory(prefix="refsim-") as folder:
        part = Path(folder) / PROBES.parent.name / PROBES.name
        part.parent.mkdir()
        part.write_text(PROBES.read_text("utf-8").partition("// ---- TMA ")[0], "utf-8")
        (part.parent / "layouts_forms.inc").write_text("")
        yield part


def _matrix_case(device: Device, entry: str, name: str, count: int) -> Case:
    """Return the case of one matrix load or store: lane i names slot slots[i], memory holds the numbers of
    halfwords."""
    slots = np.array([(7 * lane + 3) % SLOTS for lane in range(32)], np.uint32)
    words, dtype = (32 * count, np.uint32) if entry.startswith("ld") else (SLOTS * 8, np.uint16)
    with matrix_part() as part, device.probing().launcher(part) as launcher:
        out = launcher.output(words, dtype, name="out")
        launcher.launch(entry, (1,), (32,), [launcher.upload(slots, name="slots"), out])
        got = launcher.read(out).view(np.uint16)
    want = matrix_image(name, slots, got.size)
    differ, found = np.flatnonzero(got != want), None
    for first in differ[:1].tolist():
        lines = (f"halfword {first} of {'the registers, lane by lane' if entry.startswith('ld') else 'shared memory'}",)
        found = Difference(lines, f"element {int(got[first])}", f"element {int(want[first])}")
    coverage = "every halfword of every lane"
    return outcome(words=got.size, differing=differ.size, coverage=coverage, difference=found)


def matrix_image(name: str, slots: NDArray[np.uint32], size: int) -> NDArray[np.int64]:
    """Return the fragment's prediction: registers of a load, or shared memory after a store (0xffff where
    unwritten)."""
    rows, columns = fragment(name).elements
    place = slots.astype(np.int64)[rows] * 8 + columns
    if name.startswith("ld"):
        return place.ravel()
    image = np.full(size, 0xFFFF)
    image[place.ravel()] = np.arange(place.size)
    return image


# ---- operands of wgmma in shared memory ------------------------------------------------------------------------------


def _starts_case(device: Device, form: StartForm) -> Case:
    """Return the case of operands that begin anywhere in an atom, A and B shifted apart."""
    words = paired_words(form)
    with device.probing().launcher(form.code) as launcher:
        got = form.pairs(launcher, words)
    want, coverage = form.predicted(words), f"{len(words)} pairs of swizzle, start, base_offset and distances"
    differ, found = np.argwhere(got != want), None
    for pair, row, column in differ[:1].tolist():
        lines = (f"descriptors {words[pair, 0]:#x} and {words[pair, 1]:#x}: D[{row}, {column}]",)
        found = Difference(lines, str(got[pair, row, column]), str(want[pair, row, column]))
    return outcome(words=got.size, differing=len(differ), coverage=coverage, difference=found)


# ---- tensor cores ----------------------------------------------------------------------------------------------------


def product_case(instruction: TensorCoreInstruction, products: Products) -> Case:
    """Return the case of single ones: one 1 in each row of A, at every k, against random B; B likewise; then C."""
    rng = np.random.default_rng(7)
    compared, differing, first = 0, 0, ""
    for label, (a, b, c, want) in trials(rng, instruction):
        got = products(a, b, c)
        wrong = got != want
        compared, differing = compared + got.size, differing + int(wrong.sum())
        if wrong.any() and not first:
            first = label
    coverage = "every place of A, B, C and D"
    found = _misplaced(instruction, products, first) if differing else None
    return outcome(words=compared, differing=differing, coverage=coverage, difference=found)


def trials(
    rng: np.random.Generator, instruction: TensorCoreInstruction
) -> Iterator[tuple[str, tuple[Any, Any, Any, Any]]]:
    """Yield (label, (a, b, c, d)): products whose exact result is one operand's own numbers."""
    m, n, k = instruction.m, instruction.n, instruction.k
    ones = [_one(format) for format in (instruction.a_format, instruction.b_format)]
    batch = ROUNDS * k
    shapes = {"a": (batch, m, k), "b": (batch, n, k), "c": (batch, m, n)}
    formats = {"a": instruction.a_format, "b": instruction.b_format, "c": instruction.d_format}
    zeros = {name: np.zeros(shapes[name], format.code_dtype) for name, format in formats.items()}
    rows = np.arange(batch)[:, None]
    for side, one in (("a", ones[0]), ("b", ones[1])):
        other = "b" if side == "a" else "a"
        offsets = np.repeat(rng.integers(0, k, (ROUNDS, shapes[side][1])), k, axis=0)
        places = (offsets + rows) % k
        hot = zeros[side].copy()
        hot[rows, np.arange(shapes[side][1])[None], places] = one
        small = rng.integers(0, 8, shapes[other])
        codes, results = _numbers(instruction, other, small)
        met = results[rows[:, :, None], np.arange(shapes[other][1])[None, None, :], places[:, :, None]]
        given = {side: hot, other: codes}
        yield side, (given["a"], given["b"], zeros["c"], met if side == "a" else met.swapaxes(1, 2))
    numbers = _result_codes(instruction, rng.integers(0, 512, shapes["c"]))
    yield "c", (zeros["a"], zeros["b"], numbers, numbers)


def _one(format: ElementType) -> int:
    return 1 if isinstance(format, Integer) else format.bias << (format.mantissa_bits + format.padding_bits)


def _numbers(instruction: TensorCoreInstruction, side: str, small: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return codes of an operand from numbers 0 to 7, and the codes of equal values as results. Float formats take
    values that every format has: 0, 0.5, 1, 1.5, 2, 3, 4, 6 of E2M1."""
    format = instruction.a_format if side == "a" else instruction.b_format
    if format.is_integer:
        return small.astype(format.code_dtype), _result_codes(instruction, small)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[small]
    return coded(values, format), _result_codes(instruction, values)


def _result_codes(instruction: TensorCoreInstruction, values: NDArray[Any]) -> NDArray[Any]:
    if instruction.d_format.is_integer:
        return values.astype(instruction.d_format.code_dtype)
    return coded(values.astype(np.float64), instruction.d_format)


def _misplaced(instruction: TensorCoreInstruction, products: Products, side: str) -> Difference:
    """Return the first single 1 that comes out at a wrong place: one 1 in A and one in B, or one in C alone."""
    m, n, k = instruction.m, instruction.n, instruction.k
    one = _result_codes(instruction, np.array([1]))[0]
    count = m * n if side == "c" else max(m, n) * k
    a = np.zeros((count, m, k), instruction.a_format.code_dtype)
    b = np.zeros((count, n, k), instruction.b_format.code_dtype)
    c = np.zeros((count, m, n), instruction.d_format.code_dtype)
    at = np.arange(count)
    if side == "c":
        places = np.stack([at // n, at % n], 1)
        c[at, places[:, 0], places[:, 1]] = one
        words = [f"C[{i}, {j}] = 1, all products zero" for i, j in places.tolist()]
    else:
        places = np.stack([at // k % m, at // k % n], 1)
        a[at, places[:, 0], at % k] = _one(instruction.a_format)
        b[at, places[:, 1], at % k] = _one(instruction.b_format)
        words = [
            f"A[{i}, {t}] = 1, B[{t}, {j}] = 1" for (i, j), t in zip(places.tolist(), (at % k).tolist(), strict=True)
        ]
    want = np.zeros_like(c)
    want[at, places[:, 0], places[:, 1]] = one
    got = products(a, b, c)
    wrong = np.flatnonzero((got != want).any(axis=(1, 2)))
    if not wrong.size:
        return Difference((f"operand {side.upper()}: no single 1 goes astray, only several together",), "-", "-")
    number = int(wrong[0])
    out = [f"D[{i}, {j}] = 0x{int(got[number, i, j]):x}" for i, j in np.argwhere(got[number])[:4].tolist()]
    i, j = places[number].tolist()
    return Difference((words[number],), ", ".join(out) or "no 1 at all", f"D[{i}, {j}] = 0x{int(one):x}")
