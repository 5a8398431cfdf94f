"""PTX from a file: regular, not too large, in UTF-8."""

from os import PathLike

from refsim.files.access import checked_path, read_whole, text_of
from refsim.ptx.text.lexer import MAX_TEXT


def read_ptx(path: "str | PathLike[str]") -> str:
    """Return the text of a file. Raises RefsimError: `no-such-file`, `not-a-file` (a pipe, a device, a directory),
    `too-large` before anything is read, `unreadable-file` for a file that is not UTF-8 (all exit 3)."""
    where = checked_path(path)
    return text_of(read_whole(where, MAX_TEXT, "a PTX file"), "a file of PTX or CUDA text", str(where))
