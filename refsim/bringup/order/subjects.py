"""The subjects of order questions: a product that a kernel declares, on a device, or a Python function of two
matrices."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from refsim.bringup.bench import Bench, Codes, Probe, exponent_of, power, reach
from refsim.conversions import decode, encode
from refsim.device import Device
from refsim.errors import Kind, RefsimError, check_named, missing_extra, named
from refsim.formats import BF16, F16, F32, F64, Format, format_named
from refsim.kernels import Kernel, KernelProduct
from refsim.render.cards import FieldsCard
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.kind_products import products_of
from refsim.testing.user_code import called, location, place, said
from refsim.typed_arrays import format_held, is_typed, words


@dataclass(frozen=True, repr=False)
class OrderSubject(FieldsCard):
    """A matrix product whose order is asked: D (M, N) of A (M, K) and B (N, K), D[m, n] the sum of A[m, k] B[n, k].

    `multiply` takes codes and returns codes, and is called with these `n` and `k` and with M from `rows`. Without
    `a_is_free`, every element of A is 1: the subject takes only B. Without `b_is_free`, every element of B is 1, and
    the subject adds the rows of A. `scheduled` is `multiply` on a simulated GPU whose threads run in a random order.
    """

    name: str
    multiply: Callable[[Codes, Codes], Codes]
    a_format: Format
    b_format: Format
    d_format: Format
    n: int
    k: int
    rows: tuple[int, ...]
    a_is_free: bool = True
    b_is_free: bool = True
    scheduled: Callable[[Codes, Codes], Codes] | None = None

    @property
    def factors(self) -> tuple[Format, ...]:
        """Return the formats of a product's factors: only A's for sums of rows."""
        sides = (self.a_format, self.a_is_free), (self.b_format, self.b_is_free)
        return tuple(row for row, is_free in sides if is_free)

    def product(self, a: Codes, b: Codes) -> Codes:
        """Return D, after a check of its shape and dtype, as a copy: a subject may reuse its result's memory."""
        d = np.array(self.multiply(np.ascontiguousarray(a), np.ascontiguousarray(b)))
        if d.shape != (len(a), len(b)) or d.dtype != self.d_format.code_dtype:
            rule = f"{self.d_format.code_dtype}, codes of {self.d_format}, of shape {(len(a), len(b))}"
            raise RefsimError("wrong-output", f"{self.name} returned {d.dtype} of shape {d.shape}", rule=rule)
        return d


@dataclass
class Asker:
    """One subject at one M: sums by the row of A and the row of B that they multiply, many in one call.

    `columns` are the columns of D that are read; `row` is the only row, where the order of single elements is asked.
    `scale` is the power of two by which D is its sum multiplied; `sums` divides by it.
    """

    subject: OrderSubject
    m: int
    row: int | None = None
    columns: Sequence[int] = ()
    calls: int = field(default=0)
    scale: Fraction = Fraction(1)

    def sums(self, a: Codes, b: Codes, c: Codes | None = None) -> Codes:
        """Return d (batch,) of a (batch, K) and b (batch, K), as `Bench` asks for it; C must be zero."""
        if c is not None and c.any():
            raise RefsimError("no-order", "a product of matrices has no C", kind=Kind.BUG)
        found, row = self._found(a, b), self.subject.d_format
        return found if self.scale == 1 else encode(decode(found, row) / float(self.scale), row, overflow="saturate")

    def _found(self, a: Codes, b: Codes) -> Codes:
        """Return the elements of D that hold these sums."""
        columns = list(self.columns) or list(range(self.subject.n))
        rows = [self.row] if self.row is not None else list(range(self.m))
        if not self.subject.b_is_free:
            return self._row_by_row(np.where(b == 0, a.dtype.type(0), a), rows, columns[0])
        d = np.zeros(len(a), self.subject.d_format.code_dtype)
        numbers: dict[bytes, int] = {}
        kind_of = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in a], np.int64)
        kinds = a[np.unique(kind_of, return_index=True)[1]]
        order = np.argsort(kind_of, kind="stable")
        start = 0
        while start < len(order):
            taken, mine = self._fitting(kind_of[order], start, len(rows), len(columns))
            part = order[start : start + taken]
            left = kinds[np.resize(mine, self.m)] if self.row is None else np.repeat(kinds[mine], self.m, axis=0)
            right = np.zeros((self.subject.n, self.subject.k), b.dtype)
            right[columns[:taken]] = b[part]
            found = self.subject.product(left, right)
            self.calls += 1
            place = {kind: rows[at] for at, kind in enumerate(mine)}
            d[part] = found[[place[kind] for kind in kind_of[part].tolist()], columns[:taken]]
            start += taken
        return d

    def _row_by_row(self, a: Codes, rows: list[int], column: int) -> Codes:
        """Return sums of rows of A, one in each of `rows`; later rows repeat the last one."""
        subject, found = self.subject, []
        ones = np.full((subject.n, subject.k), encode(np.array(1.0), subject.b_format), subject.b_format.code_dtype)
        for start in range(0, len(a), len(rows)):
            part = a[start : start + len(rows)]
            left = part[np.minimum(np.arange(self.m), len(part) - 1)] if self.row is None else part[[0] * self.m]
            found.append(subject.product(left, ones)[rows[: len(part)], column])
            self.calls += 1
        return np.concatenate(found)

    @staticmethod
    def _fitting(kinds: NDArray[Any], start: int, rows: int, columns: int) -> tuple[int, list[int]]:
        """Return how many of the sums from `start` on fit in one call, and the rows of A that they share."""
        mine: list[int] = []
        for taken, kind in enumerate(kinds[start : start + columns].tolist()):
            if not mine or mine[-1] != kind:
                if len(mine) == rows:
                    return taken, mine
                mine.append(kind)
        return min(columns, len(kinds) - start), mine

    def bench(self, *, weighted: bool = False) -> Bench:
        """Return the subject as a bench; with `weighted`, all of A is 1 and B carries the products."""
        subject = self.subject
        kind = _Rows if not subject.b_is_free else _Weighted if weighted or not subject.a_is_free else Bench
        return kind(self.sums, subject.a_format, subject.b_format, subject.d_format, subject.k)


@dataclass(frozen=True)
class _Rows(Bench):
    """A bench whose products are elements of A; B is 1 at the places of the probe."""

    @property
    def carrier(self) -> Format:
        """Return the format of the operand whose elements are the products."""
        return self.a_format

    @property
    def top(self) -> int:
        """Return the largest exponent of a product that probes use."""
        return min(reach(self.carrier), reach(self.d_format) - 1, 60)

    @property
    def least(self) -> int:
        """Return the exponent of the least product."""
        return exponent_of(Fraction(self.carrier.quantum))

    @property
    def normal_bottom(self) -> int:
        """Return the least exponent of a product of normal operands."""
        return 1 - self.carrier.bias

    def factors(self, value: Fraction) -> tuple[int, int]:
        """Return the codes of the value in A and of 1 in B."""
        code, one = (int(encode(np.array(float(x)), row)) for x, row in ((value, self.a_format), (1, self.b_format)))
        return code, one


@dataclass(frozen=True)
class _Weighted(_Rows):
    """A bench whose products are elements of B: all rows of A are equal, so one call answers as many as it has
    columns."""

    @property
    def carrier(self) -> Format:
        """Return the format of B."""
        return self.b_format

    def factors(self, value: Fraction) -> tuple[int, int]:
        """Return the codes of 1 in A and of the value in B."""
        one, code = (int(encode(np.array(float(x)), row)) for x, row in ((1, self.a_format), (value, self.b_format)))
        return one, code

    def ask(self, probes: Sequence[Probe]) -> list[Fraction]:
        """Return the result of each probe, with A all ones."""
        full = replace(self, dots=lambda a, b, c: self.dots(np.full_like(a, self.factors(power(0))[0]), b, c))
        return Bench.ask(full, probes)


@dataclass(frozen=True)
class ReadBack(Bench):
    """A bench whose largest products are cancelled again at the place `taken`, by a later step: the rest has few bits.

    A result in bf16 thereby shows the bits that the sum before it kept. Without such a place the sums are read
    unchanged.
    """

    inner: Bench | None = None
    taken: int | None = None

    @property
    def top(self) -> int:
        """Return the largest exponent of a product that probes use: 64 such products are still one product."""
        return self._inner.top - (0 if self.taken is None else 6)

    @property
    def least(self) -> int:
        """Return the exponent of the least product."""
        return self._inner.least

    @property
    def normal_bottom(self) -> int:
        """Return the least exponent of a product of normal operands."""
        return self._inner.normal_bottom

    @property
    def _inner(self) -> Bench:
        assert self.inner is not None
        return self.inner

    def ask(self, probes: Sequence[Probe]) -> list[Fraction]:
        """Return the result of each probe, with its largest products cancelled and added back exactly."""
        largest = [self._largest(probe) if self.taken is not None else Fraction(0) for probe in probes]
        changed = [
            Probe({**probe.products, self.taken: -sum_of}) if sum_of and self.taken is not None else probe
            for probe, sum_of in zip(probes, largest, strict=True)
        ]
        return [got + sum_of for got, sum_of in zip(self._inner.ask(changed), largest, strict=True)]

    @staticmethod
    def _largest(probe: Probe) -> Fraction:
        most = max((abs(value) for value in probe.products.values()), default=Fraction(0))
        return sum((value for value in probe.products.values() if abs(value) == most), Fraction(0))


def read_back(bench: Bench, taken: int | None) -> ReadBack:
    """Return the bench with sums that are cancelled at the place `taken`."""
    return ReadBack(
        bench.dots, bench.a_format, bench.b_format, bench.d_format, bench.k, bench.floor, inner=bench, taken=taken
    )


Layout = Literal["nt", "nn"]
LAYOUTS: tuple[Layout, ...] = ("nt", "nn")
USUAL_ROWS = (1, 2, 3, 4, 8, 16, 17, 32, 64, 65, 128, 129, 256)
_INTEGERS: dict[int, type[np.integer[Any]]] = {1: np.uint8, 2: np.int16, 4: np.int32}  # integers that torch has


def of_kernel(
    kernel: Kernel,
    device: Device,
    product: str | None = None,
    *,
    n: int | None = None,
    k: int | None = None,
    rows: Sequence[int] | None = None,
) -> OrderSubject:
    """Return a matrix product of a kernel on a device; without a name, the kernel's first.

    of_kernel(kernel_named("linear"), device.open("sim")).name is "linear linear_n64_s1". Raises RefsimError for a
    kernel that declares no products, and for an unknown one.
    """
    name, row = _product_of(kernel, device, product)
    d_format = format_named(row.d_format)

    def multiply(device: Device, a: Codes, b: Codes) -> Codes:
        """Return D of A and B by one launch of the kernel; raise where its output is not M x N codes."""
        label, where = f"product {name}", f"product {name} of kernel {kernel.name}"
        problem = called(kernel, label, row.problem, a, b)
        try:
            with device.launcher(kernel.code) as launcher:
                outputs = called(kernel, "run", kernel.run, launcher, problem, problem=problem)
        except RefsimError as error:
            if error.kind is Kind.FAULT:  # the exit code of a fault means a failed comparison, and nothing was compared
                error.kind = Kind.INCONCLUSIVE
            raise
        found = named("output", row.output, outputs, where=where)
        found = words(np.asarray(found if row.read is None else called(kernel, label, row.read, found, problem)))
        if found.size != len(a) * len(b) or found.itemsize != d_format.code_dtype.itemsize:
            what = f"{row.output} is {found.size} elements of {found.itemsize} bytes"
            rule = f"M N = {len(a) * len(b)} codes of {d_format}, {d_format.code_dtype.itemsize} bytes each"
            raise RefsimError("wrong-output", what, where, rule)
        return np.ascontiguousarray(found).view(d_format.code_dtype).reshape(len(a), len(b))

    found = OrderSubject(
        f"{kernel.name} {name}",
        partial(multiply, device.probing()),
        format_named(row.a_format),
        format_named(row.b_format),
        d_format,
        n or row.n,
        k or row.k,
        tuple(rows or row.rows),
        row.a_is_free,
        scheduled=None if (other := _scheduled(device)) is None else partial(multiply, other),
    )
    if not kernel.products:
        _check_named(found)
    return found


def _check_named(subject: OrderSubject) -> None:
    """Raise RefsimError no-order unless D is the product of the operands that `computes` names: of one, and of none."""
    m, pair = subject.rows[0], (subject.a_format, subject.b_format)
    one = [np.zeros((size, subject.k), row.code_dtype) for size, row in zip((m, subject.n), pair, strict=True)]
    for each, row in zip(one, pair, strict=True):
        each[:, 0] = encode(1.0, row)
    for a, b, want in ((one[0], one[1], 1.0), (one[0], np.zeros_like(one[1]), 0.0)):
        if (decode(subject.product(a, b), subject.d_format) != want).any():
            what = f"{subject.name}: where D is the product {want:g}, the kernel writes other elements"
            rule = "run uploads the operands of the test case that it is given, and computes= names them"
            raise RefsimError(
                "no-order", what, rule=rule, help="read problem.a and problem.b in run; refsim verify first"
            )


def _product_of(kernel: Kernel, device: Device, product: str | None) -> tuple[str, KernelProduct]:
    """Return the name and declaration of a kernel's product; raise where there is none of that name."""
    if kernel.orderless and not kernel.products:
        raise RefsimError("no-order", f"kernel {kernel.name} has no order to be asked for", rule=kernel.orderless)
    products = kernel.products or products_of(kernel, device.target)
    if not products:
        what = f"kernel {kernel.name} declares no product of matrices"
        rule = "its order can be asked where computes= is a product, or products= says how operands become a test case"
        help = "Kernel(..., products={'gemm': KernelProduct(problem, output, 'bf16', 'bf16', 'bf16')})"
        raise RefsimError("no-order", what, where=str(kernel.declared_in or ""), rule=rule, help=help)
    name = product or next(iter(products))
    return name, named("product", name, products, where=f"kernel {kernel.name}")


def _scheduled(device: Device) -> Device | None:
    """Return the simulated GPU with threads in a random order; None for other devices and where the order was
    chosen."""
    from refsim.device.sim import SimDevice

    return replace(device, policy="random") if isinstance(device, SimDevice) and device.policy is None else None


def of_function(
    function: Callable[..., Any],
    a_format: str | Format,
    b_format: str | Format,
    *,
    name: str = "",
    n: int = 64,
    k: int = 512,
    rows: Sequence[int] = USUAL_ROWS,
    layout: Layout = "nt",
    torch_device: str | None = None,
    a_is_free: bool = True,
) -> OrderSubject:
    """Return the subject of a function f(a, b) of A (M, K) and B (K, N) that returns D (M, N).

    The dtype of the result gives the format of D. The function gets NumPy arrays, of ml_dtypes where NumPy has no such
    type, or torch tensors on `torch_device`. B is stored by columns ("nt": a transposed view of (N, K), as for weights)
    or by rows ("nn"). Without `a_is_free`, A holds only ones. of_function(np.matmul, "f32", "f32").d_format is F32.
    Raises RefsimError for operands without such a type, for results of types outside `refsim.formats`, and for errors
    of the function.
    """
    a_row, b_row = format_named(a_format), format_named(b_format)
    check_named("layout", layout, LAYOUTS)
    _require_signs(a_row, b_row)
    make, take = _ways(torch_device)
    label = name or getattr(function, "__name__", "function")

    def returned(a: Codes, b: Codes) -> tuple[Codes, Format]:
        a, b = a.copy(), b.copy()  # a function may overwrite its operands, which are used again
        right = make(b, b_row)
        right = right.T if layout == "nt" else make(np.ascontiguousarray(b.T), b_row)
        left = make(a, a_row)
        asked = f"f(a, b) with A (M, K) of {a_row} and B (K, N) of {b_row}"
        where = f"{label}, M = {len(a)}, N = {len(b)}, K = {a.shape[1]}"
        return _shaped(*take(_called(asked, where, function, left, right), label), (len(a), len(b)), label)

    first = next(iter(rows))
    zeros = [np.zeros((height, k), row.code_dtype) for height, row in ((first, a_row), (n, b_row))]
    d_format = returned(*zeros)[1]
    return OrderSubject(label, lambda a, b: returned(a, b)[0], a_row, b_row, d_format, n, k, tuple(rows), a_is_free)


def of_row_sums(
    function: Callable[..., Any],
    format: str | Format,
    *,
    name: str = "",
    k: int = 512,
    rows: Sequence[int] = USUAL_ROWS,
    torch_device: str | None = None,
) -> OrderSubject:
    """Return the subject of a function f(x) of X (M, K) that returns the sum of each row, (M) or (M, 1).

    It is the product of A = X and a column of ones; X is made as `of_function` makes A. of_row_sums(lambda x: x.sum(1),
    "f32").n is 1. Raises RefsimError as `of_function` does.
    """
    row = format_named(format)
    _require_signs(row)
    make, take = _ways(torch_device)
    label = name or getattr(function, "__name__", "function")

    def returned(x: Codes) -> tuple[Codes, Format]:
        asked, where = f"f(x) with X (M, K) of {row}", f"{label}, M = {len(x)}, K = {x.shape[1]}"
        codes, held = take(_called(asked, where, function, make(x.copy(), row)), label)
        return _shaped(codes[:, None] if codes.ndim == 1 else codes, held, (len(x), 1), label)

    d_format = returned(np.zeros((next(iter(rows)), k), row.code_dtype))[1]
    return OrderSubject(label, lambda a, _: returned(a)[0], row, row, d_format, 1, k, tuple(rows), b_is_free=False)


def _require_signs(*rows: Format) -> None:
    """Raise for formats without a sign: their sums cancel nothing, so lost bits never show."""
    for row in rows:
        if not row.signed:
            rule = "large operands of two signs cancel, and what they hid is lost"
            what = f"{row} has no sign"
            raise RefsimError("no-such-value", what, rule=rule, help="a type with signs: bf16, e4m3, e5m2")


def _ways(
    torch_device: str | None,
) -> tuple[Callable[[Codes, Format], Any], Callable[[Any, str], tuple[Codes, Format]]]:
    """Return the functions from codes to operands and from results to codes, for NumPy or torch."""
    return (_as_numpy, _numpy_codes) if torch_device is None else (_torch_maker(torch_device), _torch_codes)


def _called(asked: str, where: str, function: Callable[..., Any], *operands: Any) -> Any:
    """Return the function's result; raise its errors as `user-code-raised` with the failing line."""
    try:
        return function(*operands)
    except RefsimError:
        raise
    except Exception as error:
        at = ", ".join(filter(None, (where, place(error))))
        what = f"the function raised {said(error)}"
        help = f"it is called as {asked}"
        raise RefsimError("user-code-raised", what, at, help=help, place=location(error)) from error


def _shaped(codes: Codes, row: Format, shape: tuple[int, int], label: str) -> tuple[Codes, Format]:
    """Return codes and format; raise where the shape is not (M, N)."""
    if codes.shape != shape:
        raise RefsimError("wrong-output", f"{label} returned shape {codes.shape}", rule=f"(M, N) = {shape}")
    return codes, row


def function_named(text: str) -> Callable[..., Any]:
    """Return the function of "FILE.py:name" or of "module.name"; the file or the module is imported.
    function_named("numpy.matmul") is np.matmul. Raises RefsimError where there is no such function."""
    path, colon, name = text.rpartition(":")
    if colon and path.endswith(".py"):
        module = load_kernel_file(Path(path))
        found = getattr(module, name, None)
    else:
        try:
            found = resolve_name(text)
        except (ImportError, AttributeError, ValueError) as error:
            what = f"{text} is neither a kernel nor a function: {error}"
            raise RefsimError("unknown-name", what, help="FILE.py:f, or torch.matmul") from error
    if not callable(found):
        raise RefsimError("unknown-name", f"{text} is not a function", help="FILE.py:f, or torch.matmul")
    return found  # type: ignore[no-any-return]


def wants_torch(function: Callable[..., Any]) -> bool:
    """Return whether a function belongs to torch, or to a file that has imported torch by its name."""
    torch = sys.modules.get("torch")
    name = getattr(function, "__name__", "")  # built-in functions of torch name no module
    return torch is not None and (
        getattr(torch, name, None) is function
        or str(getattr(function, "__module__", "")).split(".")[0] == "torch"
        or getattr(function, "__globals__", {}).get("torch") is torch
    )


def _as_numpy(codes: Codes, row: Format) -> NDArray[Any]:
    """Return an array of NumPy or ml_dtypes that views these codes."""
    dtype = row.array_dtype or row.ml_dtype or (np.dtype(np.float32) if row.padding_bits else None)
    if dtype is None:
        raise RefsimError("unsupported-format", f"no array of NumPy or ml_dtypes holds {row}")
    return codes.view(dtype)


def _numpy_codes(d: Any, label: str) -> tuple[Codes, Format]:
    """Return the codes and the format of a result; raise for other dtypes."""
    array = np.asarray(d)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    row = format_held(array.dtype)
    if row is None or row is F64:
        what = f"{label} returned {array.dtype}"
        raise RefsimError("wrong-output", what, rule="float32, float16, or a type of ml_dtypes")
    held = words(array) if is_typed(array.dtype) else np.ascontiguousarray(array).view(row.code_dtype)
    return np.ascontiguousarray(held), row


def _torch_maker(device: str) -> Callable[[Codes, Format], Any]:
    """Return a function from codes to torch tensors on `device`."""
    torch = _torch()

    def to_torch(codes: Codes, row: Format) -> Any:
        """Return a torch tensor on `device` that holds these codes."""
        names = [*row.aliases, *(["float32"] if row.padding_bits and codes.itemsize == 4 else [])]
        dtype = next(
            (getattr(torch, each) for each in names if isinstance(getattr(torch, each, None), torch.dtype)), None
        )
        if dtype is None:
            raise RefsimError("unsupported-format", f"torch has no dtype for {row}")
        return torch.from_numpy(codes.view(_INTEGERS[codes.itemsize])).view(dtype).to(device)

    return to_torch


def _torch_codes(d: Any, label: str) -> tuple[Codes, Format]:
    """Return the codes and the format of a torch result; raise for other dtypes."""
    torch = _torch()
    name = str(getattr(d, "dtype", type(d).__name__)).removeprefix("torch.")
    row = next((row for row in (F32, F16, BF16) if name in row.aliases), None)
    if row is None:
        raise RefsimError("wrong-output", f"{label} returned {name}", rule="float32, float16 or bfloat16")
    integers = torch.int32 if row is F32 else torch.int16
    return d.detach().contiguous().cpu().view(integers).numpy().view(row.code_dtype), row


def _torch() -> Any:
    """Return torch; raise `missing-extra` where it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise missing_extra("this function needs torch, which is not installed", "pip install torch") from error
    return torch
