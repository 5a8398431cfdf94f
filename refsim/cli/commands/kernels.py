"""refsim kernels: the declared kernels and their files."""

from pathlib import Path

import click

from refsim.cli.delivery import answers
from refsim.cli.devices import need
from refsim.render import Column, Document, Table

COLUMNS = (
    Column("kernel", strong=True, of="name"),
    Column("entries", align="right", drop=3, of=lambda kernel: len(kernel.entries)),
    Column("corpus", label="special cases", align="right", drop=2, of=lambda kernel: len(kernel.corpus)),
    Column("promise", drop=4, of=lambda kernel: str(kernel.promise)),
    Column("summary", drop=1),
    Column("file", drop=5, of="code.label"),
)


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE...]")
@answers
def command(files: tuple[Path, ...]) -> Document:
    """List the kernels that FILEs declare.

    Without FILEs, refsim reads the files that [tool.refsim] in pyproject.toml lists, or else its bundled kernels.

    \b
      refsim kernels
      refsim kernels scale_kernel.py --as json
    """
    need("testing", "hypothesis")
    from refsim.testing import find_kernels

    return Document((Table.of(COLUMNS, find_kernels(files or None), key="kernels"),), "kernels")
