"""refsim order: the order in which a kernel adds, and whether it depends on the batch."""

import re
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from refsim.cli.arguments import kernels_field
from refsim.cli.delivery import AGREED, FAILED, Answer, answering
from refsim.cli.devices import ChosenDevice, need
from refsim.cli.extents import Whole
from refsim.cli.names import FORMAT, KERNEL_NAME
from refsim.cli.options import Options, argument, option
from refsim.errors import Kind, RefsimError, counted
from refsim.render import Document, Wording, facts_of

if TYPE_CHECKING:
    from refsim.bringup.order import Fingerprint, FirstDifference, OrderSubject, SumOrder
    from refsim.device import Device
    from refsim.formats import Format
    from refsim.kernels import Kernel


def said(found: "Fingerprint", key: str = "") -> Wording:
    """Return the answer for one subject: every order with its sizes, the share it explains, and the verdict."""
    subject = found.subject
    types = f"{subject.a_format} x {subject.b_format} -> {subject.d_format}"
    lines = [f"{subject.name}: D (M, {subject.n}), each a sum of {subject.k} products, {types}"]
    for number, order in enumerate(found.orders, 1):
        lines.append(f"order {number}: {_where(found, order)}")
        lines += [f"  {line}" for line in order.lines]
        lines += [f"  {line}" for line in _borne_out(order)]
    for why in dict.fromkeys(each.why for each in found.sizes if each.why):
        lines.append(f"M = {', '.join(str(each.m) for each in found.sizes if each.why == why)}: {why}")
    lines += [_verdict(found), _explained(found)]
    return Wording(tuple(lines), facts(found), key=key)


def _where(found: "Fingerprint", order: "SumOrder") -> str:
    """Return the M that show an order, with the number of elements where it is not all of D."""
    parts = []
    for each in found.sizes:
        total = sum(count for _, count in each.classes)
        here = sum(count for known, count in each.classes if known is not None and known.is_like(order))
        if here:
            parts.append(f"{each.m}" if here == total else f"{each.m} ({here} of {counted(total, 'element')})")
    return f"M = {', '.join(parts)}"


def _borne_out(order: "SumOrder") -> list[str]:
    if not order.explains:
        return [f"does not explain the bits: it gives {order.equal:,} of {order.words:,} elements"]
    if order.reversed_equal == order.words:
        return ["the bits bear it out, but they do not tell it from the same order with K reversed; probing does"]
    return []


def _verdict(found: "Fingerprint") -> str:
    rows = [each.m for each in found.sizes]
    difference = found.difference
    if not found.repeats:
        return "not repeatable: the same test case gave other results in another run, so its batch was not examined"
    if difference is None:
        seeds = f"{len(found.seeds)} seed{'s' if len(found.seeds) > 1 else ''}"
        return f"batch invariant: M = {', '.join(map(str, rows))}, every row at every place, {seeds}"
    smallest = f"from M = {difference.m} on" + (
        f" (M = {difference.agrees} agrees)" if difference.agrees > rows[0] else ""
    )
    words = f"{_element(difference, found)}, and {_spelled_code(difference.want, found)} at M = {rows[0]}"
    return f"not batch invariant: {smallest} {words}"


def _element(difference: "FirstDifference", found: "Fingerprint") -> str:
    return f"D[{difference.row}, {difference.column}] is {_spelled_code(difference.got, found)}"


def _spelled_code(code: int, found: "Fingerprint") -> str:
    from refsim.conversions import decode

    row = found.subject.d_format
    value = float(decode(row.code_dtype.type(code), row))
    return f"0x{code:0{row.code_dtype.itemsize * 2}x} ({value:.9g})"


def _explained(found: "Fingerprint") -> str:
    if not found.explains:
        return f"not explained: the orders found give {found.explained:,} of {found.words:,} elements"
    orders = "these orders" if len(found.orders) > 1 else "this order"
    return f"every element explained: computing in {orders} gives all {found.words:,}"


def versus(one: "Fingerprint", other: "Fingerprint", difference: "FirstDifference | None") -> Wording:
    """Return the line that compares two subjects: their orders, and the first element that differs."""
    alike = len(one.orders) == len(other.orders) and all(
        any(order.is_like(known) for known in other.orders) for order in one.orders
    )
    orders = "the same order" if alike and one.orders else "other orders"
    shared = [each.m for each in one.sizes if each.m in {size.m for size in other.sizes}]
    if difference is None:
        bits = f"equal results at M = {', '.join(map(str, shared))}" if shared else "no M in common"
    else:
        left, right = _element(difference, one), _spelled_code(difference.want, one)
        bits = f"at M = {difference.m} {left} in {one.subject.name}, {right} in {other.subject.name}"
    facts = {
        "same_order": bool(alike and one.orders),
        "rows": shared,
        "difference": None if difference is None else asdict(difference),
    }
    return Wording((f"{one.subject.name} against {other.subject.name}: {orders}; {bits}",), facts, key="against")


def facts(found: "Fingerprint") -> dict[str, Any]:
    """Return the facts about a subject for JSON, trees included."""
    from refsim.bringup.order.revealing import nested

    subject, orders = found.subject, found.orders

    def numbered(order: "SumOrder | None") -> int | None:
        """Return the number of an order, from 1."""
        if order is None:
            return None
        return next(at for at, known in enumerate(orders, 1) if known.is_like(order))

    return {
        "subject": subject.name,
        **facts_of(subject, "a_format=a_format.name b_format=b_format.name d_format=d_format.name n k"),
        "batch_invariant": found.is_batch_invariant,
        "difference": None if found.difference is None else asdict(found.difference),
        **facts_of(found, "repeatable=repeats words explained calls"),
        "seeds": list(found.seeds),
        "sizes": [
            {
                "m": each.m,
                "orders": [{"order": numbered(order), "elements": count} for order, count in each.classes],
                **facts_of(each, "words explained"),
                **({"why": each.why} if each.why else {}),
            }
            for each in found.sizes
        ],
        "orders": [
            {"lines": list(order.lines), **facts_of(order, "words equal reversed_equal"), "tree": nested(order.tree)}
            for order in orders
        ],
    }


MOST_SEEDS, MOST_ROWS = 16, 1 << 14


class RowList(click.ParamType):  # type: ignore[type-arg]
    """Values of M: 1,2,4,16."""

    name = "rows"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers, ascending and each once. Raises RefsimError bad-value."""
        if isinstance(value, tuple):
            return value
        if re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", str(value)) is None:
            raise RefsimError("bad-value", f"{value!r:.40} is not a list of M", "--m", "numbers of rows, as 1,2,4,16")
        rows = tuple(sorted({int(each) for each in str(value).split(",")}))
        if rows[0] < 1 or rows[-1] > MOST_ROWS:
            raise RefsimError("bad-value", f"M from {rows[0]} to {rows[-1]}", "--m", f"M is from 1 to {MOST_ROWS}")
        return rows


class OrderOptions(Options):
    """The options of `refsim order`."""

    kernel: str = argument(type=KERNEL_NAME)
    against: str | None = option("Compare with the order of another kernel.", metavar="KERNEL")
    product: str | None = option("Product of the kernel (default: the first).")
    against_product: str | None = option("Product of the other kernel (default: the first).")
    rows: tuple[int, ...] | None = option(
        "Sizes of the batch, such as 1,2,4,16.", "--m", metavar="LIST", type=RowList()
    )
    n: int | None = option("Number of columns of D.", type=Whole(min=1))
    k: int | None = option("Number of products in each sum.", type=Whole(min=2))
    row: "Format | None" = option("Type of A and B, if KERNEL is a Python function.", "-t", "--format", type=FORMAT)
    a_format: "Format | None" = option("Type of A.", type=FORMAT)
    b_format: "Format | None" = option("Type of B.", type=FORMAT)
    row_sums: bool = option("KERNEL is a function f(x): the sums of the rows of X (M, K).")
    layout: Literal["nt", "nn"] = option(
        "B, if KERNEL is a Python function: by columns (nt) or rows.", metavar="nt|nn", default="nt"
    )
    seeds: int = option("Number of random test cases.", type=Whole(1, MOST_SEEDS), default=2)
    thorough: bool = option("Probe every group of products, even if it looks like an earlier group.")
    files: tuple[Path, ...] = kernels_field()
    on: ChosenDevice = ChosenDevice()


@answering()
def command(asked: OrderOptions) -> Answer:
    """Find the order and the grouping in which KERNEL adds its products, and check them on random inputs.

    KERNEL declares its products of matrices with Kernel(products=...) or computes=. It may also be a function f(a, b) of A
    (M, K) and B (K, N): FILE.py:f, numpy.matmul or torch.matmul. With --row-sums it is f(x), the sum of each row of X (M, K).
    The answer gives the order for each M and each place in the batch. The exit code is 1 if a row's result depends on its
    batch or on the run, or if two kernels differ. It is 5 if the order does not explain every element.

    \b
      refsim order linear --device sim --k 128 --m 1,16
      refsim order numpy.matmul --m 1,2,64
      refsim order served.py:matmul -t bf16 --against trained.py:matmul
      refsim order fp8_gemm_1d2d --kernels gpu/gemm_1d2d.py \\
          --product chosen --device cuda --m 1,64,512
    """
    need("testing", "hypothesis")
    from refsim.bringup.order import compared, fingerprint

    chosen, against, seeds = _Chosen(asked), asked.against, range(asked.seeds)
    with redirect_stdout(sys.stderr):  # the answer excludes the output of the functions
        subjects = [chosen.subject(asked.kernel, asked.product)]
        if against is not None:
            subjects.append(chosen.subject(against, asked.against_product))
        found = [fingerprint(subject, seeds=seeds, thorough=asked.thorough) for subject in subjects]
        difference = compared(found[0], found[1]) if against is not None else None
    parts = [said(each, key=f"subject_{number}" if against else "") for number, each in enumerate(found, 1)]
    differs = not all(each.is_batch_invariant and each.repeats for each in found)
    if against is not None:
        parts.append(versus(found[0], found[1], difference))
        differs = difference is not None
    open_words = not all(each.explains for each in found)
    code = FAILED if differs else Kind.INCONCLUSIVE.value if open_words else AGREED
    return Answer(Document(tuple(parts), f"the order of {asked.kernel}"), code)


@dataclass
class _Chosen:
    """The declared kernels, their device, and the operands of functions."""

    asked: OrderOptions

    def subject(self, name: str, product: str | None) -> "OrderSubject":
        """Return a declared kernel or a function, ready to probe. Raises RefsimError for options that do not fit."""
        from refsim.bringup.order import of_kernel

        if (kernel := self._kernel(name)) is None:
            return self._function(name)
        own = {"-t": "row", "--a-format": "a_format", "--b-format": "b_format", "--row-sums": "row_sums"}
        for flag, given in own.items():
            if getattr(self.asked, given):
                raise RefsimError(
                    "usage", f"{flag} is of functions", f"kernel {name}", "a kernel says its own products"
                )
        return of_kernel(kernel, self.device, product, n=self.asked.n, k=self.asked.k, rows=self.asked.rows)

    @cached_property
    def device(self) -> "Device":
        """Return the device, opened at the first use."""
        return self.asked.on.opened()

    def _kernel(self, name: str) -> "Kernel | None":
        """Return the declared kernel of a name, or None for a function."""
        from refsim.testing import find_kernels, kernel_named

        files = self.asked.files or None
        if ":" in name or ("." in name and name not in {kernel.name for kernel in find_kernels(files)}):
            return None
        return kernel_named(name, files)

    def _function(self, name: str) -> "OrderSubject":
        """Return a function of matrices or of rows, ready to probe."""
        from refsim.bringup.order import function_named, of_function, of_row_sums
        from refsim.bringup.order.subjects import USUAL_ROWS, wants_torch
        from refsim.formats import F32

        function, asked = function_named(name), self.asked
        torch_device = self._torch_device() if wants_torch(function) else None
        rows, k, n = asked.rows or USUAL_ROWS, asked.k or 512, asked.n or 64
        a, b = (each or asked.row or F32 for each in (asked.a_format, asked.b_format))
        if asked.row_sums:
            return of_row_sums(function, a, name=name, k=k, rows=rows, torch_device=torch_device)
        return of_function(
            function, a, b, name=name, n=n, k=k, rows=rows, layout=asked.layout, torch_device=torch_device
        )

    def _torch_device(self) -> str:
        """Return cuda for a real GPU, or cpu for torch's own arithmetic on the host."""
        import torch

        name = self.asked.on.device_name
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "sim"
        return ":".join(name.split(":")[:2]) if name.startswith("cuda") else "cpu"
