"""Drawings of layouts: a painter for each type, registered by type, and the pictures that a notebook shows."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from refsim.errors import unknown
from refsim.render import Document, Picture, rendered

Class = TypeVar("Class", bound=type)
Painter = TypeVar("Painter", bound=Callable[..., Picture])

# The module whose painters register here. It is imported on first use: it imports the types, which import this file.
PAINTERS = "refsim.layouts.pictures"
_PAINTER_OF: dict[type, Callable[..., Picture]] = {}
_TITLE_OF: dict[type, Callable[[Any], str]] = {}


@dataclass(frozen=True)
class Drawing:
    """Describe a picture under a title, as notebooks show it."""

    title: str
    picture: Picture

    def svg(self) -> str:
        """Return the drawing as SVG text."""
        return rendered(Document((self.picture,), self.title), "svg")[0]

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x:auto">{self.svg()}</div>'


def draw(thing: Any) -> Drawing:
    """Return the drawing of a fragment, a tile, a swizzle, a scale layout (its first tile), an access or a walk.

    Raises RefsimError for a thing of any other type.
    draw(fragment("mma.m16n8k16.bf16.a")).title is "mma.m16n8k16.bf16.a". Source: the layout's.
    """
    import_module(PAINTERS)
    kind = type(thing)
    if kind not in _PAINTER_OF:
        raise unknown("drawable layout", kind.__name__, [each.__name__ for each in _PAINTER_OF])
    return Drawing(_TITLE_OF[kind](thing), _PAINTER_OF[kind](thing))


def _name_or_first_line(thing: Any) -> str:
    return getattr(thing, "name", "") or str(thing).partition("\n")[0]


def paints(kind: type, title: Callable[[Any], str] = _name_or_first_line) -> Callable[[Painter], Painter]:
    """Register the decorated function as the painter of a type; `title` returns the title of a drawing."""

    def register(painter: Painter) -> Painter:
        _PAINTER_OF[kind], _TITLE_OF[kind] = painter, title
        return painter

    return register


def drawn(layout: Class) -> Class:
    """Give a class the two methods that Jupyter calls; the drawing is made only when one is called."""

    def svg(self: Any) -> str:
        return draw(self).svg()

    def html(self: Any) -> str:
        return draw(self)._repr_html_()

    for name, method in (("_repr_svg_", svg), ("_repr_html_", html)):
        setattr(layout, name, method)
    return layout
