"""refsim explore: formats, fragments, swizzles and descriptors as a page to look around in."""

from pathlib import Path

import click

from refsim.cli import console
from refsim.cli.delivery import AGREED, STDOUT, form_of, require_writable, save
from refsim.errors import RefsimError

FORM = "html"


@click.command()
@click.option("-o", "--output", metavar="FILE", help="Write to FILE, an .html (default: standard output).")
def command(output: str | None) -> int:
    """Write one HTML page where you pick a format, a fragment, a swizzle or a descriptor, and point at its elements.

    The page shows the thread, register, byte, bank, code and value of each element. It decodes a dump (bytes, words, xxd, a
    NumPy list) or a descriptor that you paste. It needs no server and no network. The arrow keys move over elements.

    \b
      refsim explore -o explore.html
    """
    from refsim.cli.answers.explorer.page import page

    if output in STDOUT or output is None:
        console.answer(page())
        return AGREED
    if (form := form_of(output)) != FORM:
        what = f"the suffix of {output} is that of {form}"
        raise RefsimError("form-does-not-fit", what, where="-o", help="a name that ends in .html")
    require_writable(Path(output))
    content = page().encode()
    save(Path(output), content)
    console.tell(f"{output}: {len(content) / 1e6:.1f} MB, to open in a browser")
    return AGREED
