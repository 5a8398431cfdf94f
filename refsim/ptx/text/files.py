"""PTX from a file: regular, not too large, in UTF-8."""

from os import PathLike

from refsim.files.access import bytes_text, checked_path, open_for_reading, unreadable
from refsim.ptx.text.lexer import MAX_TEXT


def read_ptx(path: "str | PathLike[str]") -> str:
    """The text of a file, with the errors that readers of data raise (exit 3).

    Raises RefsimError: `no-such-file`, `not-a-file` (a pipe, a device, a directory), `oversized-file` before anything is
    read, `unreadable-file` for what is not UTF-8.
    """
    where = checked_path(path)
    with open_for_reading(where) as reader:
        if reader.left > MAX_TEXT:
            raise unreadable(
                "oversized-file",
                f"a PTX file of {bytes_text(reader.left)}",
                str(where),
                rule=f"at most {bytes_text(MAX_TEXT)} are read",
            )
        content = bytes(reader.take(reader.left, "the file"))
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise unreadable("unreadable-file", f"not PTX: {error}", str(where)) from None
