"""refsim order: the order in which a kernel adds, and whether it depends on the batch."""

import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refsim.cli.arguments import kernels_option
from refsim.cli.delivery import AGREED, FAILED, Answer, answers
from refsim.cli.devices import device_options, need, opened
from refsim.cli.extents import Whole
from refsim.cli.names import FORMAT, KERNEL_NAME
from refsim.errors import Kind, RefsimError
from refsim.render import Document

if TYPE_CHECKING:
    from refsim.bringup.order import OrderSubject
    from refsim.device import Device
    from refsim.formats import Format
    from refsim.kernels import Kernel

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


@click.command()
@click.argument("kernel", type=KERNEL_NAME)
@click.option("--against", metavar="KERNEL", help="Compare with the order of another kernel.")
@click.option("--product", metavar="NAME", help="Product of the kernel (default: the first).")
@click.option("--against-product", metavar="NAME", help="Product of the other kernel (default: the first).")
@click.option("--m", "rows", metavar="LIST", type=RowList(), help="Sizes of the batch, such as 1,2,4,16.")
@click.option("--n", type=Whole(min=1), help="Number of columns of D.")
@click.option("--k", type=Whole(min=2), help="Number of products in each sum.")
@click.option("-t", "--format", "row", type=FORMAT, help="Type of A and B, if KERNEL is a Python function.")
@click.option("--a-format", type=FORMAT, help="Type of A.")
@click.option("--b-format", type=FORMAT, help="Type of B.")
@click.option("--row-sums", is_flag=True, help="KERNEL is a function f(x): the sums of the rows of X (M, K).")
@click.option(
    "--layout", metavar="nt|nn", default="nt", help="B, if KERNEL is a Python function: by columns (nt) or rows."
)
@click.option("--seeds", type=Whole(1, MOST_SEEDS), default=2, help="Number of random test cases.")
@click.option("--thorough", is_flag=True, help="Probe every group of products, even if it looks like an earlier group.")
@kernels_option
@device_options
@answers
def command(
    kernel: str,
    against: str | None,
    product: str | None,
    against_product: str | None,
    seeds: int,
    thorough: bool,
    device_name: str,
    target: str | None,
    files: tuple[Path, ...],
    **how: Any,
) -> Answer:
    """Find the order and the grouping in which KERNEL adds its products, and check them on random inputs.

    KERNEL declares its products of matrices with Kernel(products=...). It may also be a function f(a, b) of A (M, K) and B
    (K, N): FILE.py:f, numpy.matmul or torch.matmul. With --row-sums it is f(x), the sum of each row of X (M, K). The answer
    gives the order for each M and each place in the batch. The exit code is 1 if a row's result depends on its batch or on
    the run, or if two kernels differ. It is 5 if the order does not explain every element.

    \b
      refsim order linear --device sim --k 128 --m 1,16
      refsim order numpy.matmul --m 1,2,64
      refsim order served.py:matmul -t bf16 --against trained.py:matmul
      refsim order fp8_gemm_1d2d --kernels gpu/gemm_1d2d.py \\
          --product chosen --device cuda --m 1,64,512
    """
    need("testing", "hypothesis")
    from refsim.bringup.order import compared, fingerprint
    from refsim.cli.answers.orders import said, versus

    chosen = _Chosen(files, device_name, target, how)
    with redirect_stdout(sys.stderr):  # the answer excludes the output of the functions
        subjects = [chosen.subject(kernel, product)]
        if against is not None:
            subjects.append(chosen.subject(against, against_product))
        found = [fingerprint(subject, seeds=range(seeds), thorough=thorough) for subject in subjects]
        difference = compared(found[0], found[1]) if against is not None else None
    parts = [said(each, key=f"subject_{number}" if against else "") for number, each in enumerate(found, 1)]
    differs = not all(each.is_batch_invariant and each.repeats for each in found)
    if against is not None:
        parts.append(versus(found[0], found[1], difference))
        differs = difference is not None
    open_words = not all(each.explains for each in found)
    code = FAILED if differs else Kind.INCONCLUSIVE.value if open_words else AGREED
    return Answer(Document(tuple(parts), f"the order of {kernel}"), code)


class _Chosen:
    """The declared kernels, their device, and the operands of functions."""

    def __init__(self, files: tuple[Path, ...], device_name: str, target: str | None, how: dict[str, Any]) -> None:
        self.files, self.device_name, self.target, self.how = files, device_name, target, how
        self._device: Device | None = None

    def subject(self, name: str, product: str | None) -> "OrderSubject":
        """Return a declared kernel or a function, ready to probe. Raises RefsimError for options that do not fit."""
        from refsim.bringup.order import of_kernel

        if (kernel := self._kernel(name)) is None:
            return self._function(name)
        own = {"-t": "row", "--a-format": "a_format", "--b-format": "b_format", "--row-sums": "row_sums"}
        for option, given in own.items():
            if self.how[given]:
                raise RefsimError(
                    "usage", f"{option} is of functions", f"kernel {name}", "a kernel says its own products"
                )
        return of_kernel(kernel, self.device(), product, n=self.how["n"], k=self.how["k"], rows=self.how["rows"])

    def device(self) -> "Device":
        """Return the device, opened at the first call."""
        if self._device is None:
            self._device = opened(self.device_name, self.target)
        return self._device

    def _kernel(self, name: str) -> "Kernel | None":
        """Return the declared kernel of a name, or None for a function."""
        from refsim.testing import find_kernels, kernel_named

        if ":" in name or ("." in name and name not in {kernel.name for kernel in find_kernels(self.files or None)}):
            return None
        return kernel_named(name, self.files or None)

    def _function(self, name: str) -> "OrderSubject":
        """Return a function of matrices or of rows, ready to probe."""
        from refsim.bringup.order import function_named, of_function, of_row_sums
        from refsim.bringup.order.subjects import USUAL_ROWS, wants_torch

        function, how = function_named(name), self.how
        torch_device = self._torch_device() if wants_torch(function) else None
        rows, k = how["rows"] or USUAL_ROWS, how["k"] or 512
        if how["row_sums"]:
            return of_row_sums(function, self._format("a_format"), name=name, k=k, rows=rows, torch_device=torch_device)
        return of_function(
            function,
            self._format("a_format"),
            self._format("b_format"),
            name=name,
            n=how["n"] or 64,
            k=k,
            rows=rows,
            layout=how["layout"],
            torch_device=torch_device,
        )

    def _format(self, side: str) -> "Format":
        from refsim.formats import F32

        row: Format = self.how[side] or self.how["row"] or F32
        return row

    def _torch_device(self) -> str:
        """Return cuda for a real GPU, or cpu for torch's own arithmetic on the host."""
        import torch

        name = self.device_name
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "sim"
        return ":".join(name.split(":")[:2]) if name.startswith("cuda") else "cpu"
