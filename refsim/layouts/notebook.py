"""What a notebook shows for a layout: its drawing."""

from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


def drawn(layout: Class) -> Class:
    """Give a class the two methods that Jupyter asks for; the drawing is made only when one is called."""

    def svg(self: Any) -> str:
        from refsim.layouts.pictures import draw

        return draw(self).svg()

    def html(self: Any) -> str:
        from refsim.layouts.pictures import draw

        return draw(self)._repr_html_()

    for name, method in (("_repr_svg_", svg), ("_repr_html_", html)):
        setattr(layout, name, method)
    return layout
