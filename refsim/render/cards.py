"""How an object looks at a prompt: one short line, and in a notebook a small table of what it is."""

from collections.abc import Iterable
from html import escape
from typing import Any

Facts = Iterable[tuple[str, object]]


class Card:
    """A base for what users hold: `_line` is its repr, `<Format e4m3: 8 bits>` for "e4m3: 8 bits", and `_facts`, pairs of a
    label and a value, stand below it in Jupyter. A dataclass says `repr=False`, or it writes a repr of its own."""

    def _line(self) -> str:
        raise NotImplementedError

    def _facts(self) -> Facts:
        return ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._line()}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The same where Hypothesis or IPython prints it: they would go through every field of a dataclass."""
        printer.text(repr(self))

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align:left">{escape(label)}</th><td style="text-align:left">{escape(str(value))}</td></tr>'
            for label, value in self._facts()
        )
        return f"<table><caption>{escape(type(self).__name__)} {escape(self._line())}</caption>{rows}</table>"
