"""refsim mma: the result of a tensor core, and the steps that lead to it."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refsim.cli.arguments import ARRAY_SUFFIXES
from refsim.cli.delivery import answers
from refsim.cli.product_options import MmaOptions
from refsim.errors import RefsimError
from refsim.render import Document, Wording

if TYPE_CHECKING:
    from refsim.cli.answers.dotproduct import Question
    from refsim.cli.products import MmaArguments


USUAL = "wgmma"  # the unit of the default target; any other choice is reported


def _keeps_codes(run: Callable[..., int]) -> Callable[..., int]:
    """Make -o FILE.npy (npz, safetensors, bin, raw) keep the result's codes; other suffixes select a form."""

    @functools.wraps(run)
    def kept(*, output: str | None, **arguments: Any) -> int:
        """Run the command with the file as `to` where it keeps codes, else as `output`."""
        as_codes = output is not None and output.endswith(ARRAY_SUFFIXES)
        return run(output=None if as_codes else output, to=Path(output or "") if as_codes else None, **arguments)

    return kept


@click.command()
@_keeps_codes
@answers
def command(asked: MmaOptions, to: Path | None) -> Document:
    """Compute the bits that a tensor core returns for D = A B^T + C. With --explain, show every step.

    A list is a row of A or a column of B; - reads one list from standard input. Zeros fill it up to the K of the
    instruction. 0x38 and 0b111000 are codes. 1.5, -2 and inf are values, which must be exact. Two files make a whole
    product: -o D.npy keeps its codes, and --at picks one element. In the explanation, a term shows its exponent, its
    integer in units of 2^(E - F), and the bits that were cut; E is the largest exponent. OPCODE is a PTX instruction, or a
    unit as in --unit.

    \b
      refsim mma mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 \\
          --a 1,2 --b 0.5,-2
      refsim mma --explain -t e4m3 --a 0x38,0x40,1.5 --b 0x38,0x01,-2 \\
          --c 0.001953125
      refsim mma -t bf16 --unit mma.sync --target sm_80 \\
          --a=-8192,-0.5 --b 1024,1 --c 8388608
      refsim mma --a a.npy --b b.npy -t e4m3 -o d.npy
      refsim mma --a a.npy --b b.npy -t e4m3 --at 17,42 --explain
    """
    from refsim.cli.products import read

    at, explain, opcode, both = asked.at, asked.explain, asked.opcode, asked.both
    if opcode is not None and asked.unit is not None:
        raise RefsimError("usage", f"both {opcode} and --unit {asked.unit}", help="name the instruction once")
    a, b = asked.a_format or both, asked.b_format or both
    product = read(replace(asked, unit=opcode or asked.unit, a_format=a, b_format=b))
    whole = (product.a.shape[-2], product.b.shape[-2])
    if at is not None:
        product = product.at(*at)
    elif whole != (1, 1) and (explain or to is None):
        help = "give --at ROW,COL" if explain else "give --at ROW,COL, or -o D.npy for all of it"
        raise RefsimError("usage", f"the result is {whole[0]} x {whole[1]}", rule="one element is shown", help=help)
    if to is not None and explain:
        raise RefsimError("usage", "the steps are not codes", f"-o {to}", help="-o FILE.txt, .json or .md keeps them")
    return replace(_answered(product, to, explain=explain, zeros=asked.zeros), hints=_said(product))


def _said(product: "MmaArguments") -> tuple[str, ...]:
    """Return a hint on the unit that refsim chose, unless it is the unit of the default target."""
    if not product.chosen or product.unit == USUAL:
        return ()
    types = f"{product.a_format} x {product.b_format}"
    return (f"unit {product.unit}, which kernels of {product.target} use for {types}; --unit names another",)


def _answered(product: "MmaArguments", to: Path | None, *, explain: bool, zeros: bool) -> Document:
    if to is not None:
        return _whole(product, to)
    from refsim.cli.answers import dotproduct

    question = _question(product)
    if explain:
        return dotproduct.document(question, zeros=zeros)
    found = dotproduct.head(question, _codes(product).item())
    return Document((found,), product.row.name, (product.row.source,))


def _codes(product: "MmaArguments") -> Any:
    """Return the result of numerics.mma as unsigned codes, without its warning: the answer shows the evidence."""
    from refsim import numerics

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", numerics.UnverifiedProfileWarning)
        d = numerics.mma(product.a, product.b, product.c, **product.arguments())
    return d.view(f"u{d.dtype.itemsize}")


def _question(product: "MmaArguments") -> "Question":
    """Return the dot product with operands as numerics.mma checks them; the signs of negated operands are flipped."""
    from refsim.cli.answers.dotproduct import Question
    from refsim.numerics.calls import arguments_of, fitted

    of_operands = product.arguments(
        "a_format", "b_format", "a_scale", "b_scale", "scale_format", "negate_a", "negate_b"
    )
    call = fitted(arguments_of(product.a, product.b, product.c, **of_operands), product.row, product.k)
    operands = call.operands

    def codes(array: Any) -> tuple[int, ...]:
        """Return the codes of an array, none for None."""
        return () if array is None else tuple(array.ravel().tolist())

    return Question(
        product,
        codes(operands.a),
        codes(operands.b),
        int(call.c.item()),
        codes(operands.a_scale),
        codes(operands.b_scale),
    )


def _whole(product: "MmaArguments", to: Path) -> Document:
    """Write the product of two files to a third, and return its facts."""
    from refsim import files
    from refsim.cli.answers import dotproduct

    row = product.row
    codes = _codes(product)
    files.save(to, codes, row.d_format.name)
    m, n = codes.shape
    k = product.a.shape[-1]
    plus = "" if product.c is None else " + C"
    line = f"{to}: {m} x {n} {row.d_format} = A {m} x {k} times B {n} x {k} transposed{plus}"
    facts = {"to": str(to), "shape": [m, n], **dotproduct.instruction_facts(product)}
    return Document((Wording((line, *dotproduct.instruction(product)), facts),), row.name, (row.source,))
