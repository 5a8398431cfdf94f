"""The appearance of an object at a prompt: one short line, and in a notebook a small table."""

from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from enum import Enum
from html import escape
from typing import Any

Facts = Iterable[tuple[str, object]]
LONGEST_REPR = 120
_LONGEST_VALUE = 40


class Card:
    """A base class for what users hold: `_repr_summary` makes its repr, `<Format e4m3: 8 bits>` for "e4m3: 8 bits".

    `_facts` are pairs of a label and a value, shown below it in Jupyter. A dataclass needs `repr=False` to use this
    repr.
    """

    def _repr_summary(self) -> str:
        raise NotImplementedError

    def _facts(self) -> Facts:
        return ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._repr_summary()}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the repr; Hypothesis and IPython would otherwise print every field of a dataclass."""
        printer.text(repr(self))

    def _repr_html_(self) -> str:
        """Return a table of the facts under the summary."""
        rows = "".join(
            f'<tr><th style="text-align:left">{escape(label)}</th><td style="text-align:left">{escape(str(value))}</td></tr>'
            for label, value in self._facts()
        )
        return f"<table><caption>{escape(type(self).__name__)} {escape(self._repr_summary())}</caption>{rows}</table>"


class NamedCard(Card):
    """A card of an entry of a table, whose text is its name."""

    name: str

    def __str__(self) -> str:
        return self.name


class FieldsCard(Card):
    """A card of a dataclass: its line shows fields that differ from their defaults, as many as fit; arrays by shape."""

    def _repr_summary(self) -> str:
        room = LONGEST_REPR - len(f"<{type(self).__name__} , ...>")
        parts: list[str] = []
        told = [(name, value) for name, value, is_told in self._told() if is_told]
        for name, value in told:
            part = f"{name}={value}"
            if len(", ".join([*parts, part])) > room:
                return ", ".join([*parts, "..."])
            parts.append(part)
        return ", ".join(parts) or "as usual"

    def _facts(self) -> Facts:
        return [(name, value) for name, value, _ in self._told()]

    def _told(self) -> list[tuple[str, str, bool]]:
        """Return (name, value as text, differs from its default) of each field."""
        found = []
        for each in fields(self):  # type: ignore[arg-type]  # all subclasses are dataclasses
            value = getattr(self, each.name)
            if each.repr:
                found.append((each.name, in_words(value), value is not _usual(each)))
        return found


def _usual(of: "Field[Any]") -> object:
    return of.default if of.default is not MISSING else object()


def in_words(value: object) -> str:
    """Return a value as part of a line: an array by dtype and shape, a function by name, a long value by its length."""
    shape = getattr(value, "shape", None)
    if shape and hasattr(value, "dtype"):
        return f"{value.dtype} {' x '.join(map(str, shape))}"
    if isinstance(value, Enum):
        return str(value)
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    if isinstance(value, list | tuple | set | frozenset | dict) and len(repr(value)) > _LONGEST_VALUE:
        return f"{len(value)} of {type(value).__name__}"
    text = repr(value) if isinstance(value, str | list | tuple | set | frozenset | dict | float) else str(value)
    return (
        text
        if len(text) <= _LONGEST_VALUE and "\n" not in text
        else f"{text[: _LONGEST_VALUE - 4].splitlines()[0]} ..."
    )
