"""Types of options that take a name. A shell completes the name; its module is imported only then."""

from collections.abc import Iterable
from difflib import get_close_matches
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from refsim.errors import RefsimError, unknown

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Name(click.ParamType):  # type: ignore[type-arg]
    """A name that the model checks.

    `known`, written "module:attribute", holds all names: an iterable of names, or of entries whose attribute `by` is
    the name, or a function that returns one of these. `row` is the function that returns the entry of a name; without
    it the command gets the name. Help pages show `metavar`.
    """

    def __init__(self, name: str, known: str, *, by: str = "", row: str = "", metavar: str = "") -> None:
        self.name, self._known, self._by, self._row, self.metavar = name, known, by, row, metavar

    def known(self) -> list[str]:
        """Return all names, in the order of their entries."""
        found = resolve_name(self._known)
        rows = found() if callable(found) else found
        return [getattr(row, self._by) if self._by else row for row in rows]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the entry of a name, or the name. Raises the RefsimError of the lookup, with the option in `where`."""
        try:
            return resolve_name(self._row)(value) if self._row else value
        except RefsimError as error:
            error.where = error.where or (param.opts[-1] if param and param.param_type_name == "option" else "")
            raise

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        """Return the names that begin with `incomplete`."""
        return completions(((name, None) for name in self.known()), incomplete)


def completions(names: Iterable[tuple[str, str | None]], incomplete: str) -> "list[CompletionItem]":
    """Return the names that begin with `incomplete`, with their descriptions."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(name, help=summary) for name, summary in names if name.startswith(incomplete)]


class KernelName(Name):
    """The name of a kernel. A shell reads it in the text of the kernel files: completion executes no file."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        """Return the names in the files of --kernels, else of the project or refsim, that begin with `incomplete`."""
        from refsim.testing.kernel_files import names_without_running

        given = ctx.params.get("files") or ()
        return completions(((name, None) for name in names_without_running(given)), incomplete)


class WeightLayoutOr(Name):
    """A name of another kind, or a layout of checkpoints: `load_codes` takes the layout, and the command gets None."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the entry of the other kind, or None for a layout of checkpoints."""
        try:
            return super().convert(value, param, ctx)
        except RefsimError:
            from refsim.checkpoints.layouts import CHECKPOINT_LAYOUTS

            names = [row.name for row in CHECKPOINT_LAYOUTS]
            if ctx is not None and value.lower() in names:
                ctx.meta[_ASKED] = value.lower()
                return None
            if get_close_matches(value.lower(), names, 1, 0.7):
                raise unknown("layout", value, [*names, *self.known()]) from None
            raise


def weight_layout() -> str | None:
    """Return the layout of checkpoints that the user's command names for its operands."""
    context = click.get_current_context(silent=True)
    found: str | None = None if context is None else context.meta.get(_ASKED)
    return found


_ASKED = "refsim.weight-layout"
KERNEL_NAME = KernelName("kernel", "refsim.testing:find_kernels", by="name")
FORMAT = Name("format", "refsim.formats:FORMATS", by="name", row="refsim.formats:format_named")
ARRAY_TYPE = Name("format", "refsim.formats.elements:array_type_names", row="refsim.formats:array_type")
LAYOUT = Name("layout", "refsim.layouts.families:fragments", row="refsim.layouts.families:fragment")
THREADS_OR_WEIGHTS = WeightLayoutOr(
    "layout", "refsim.layouts.families:fragments", row="refsim.layouts.families:fragment"
)
SCALES_OR_WEIGHTS = WeightLayoutOr(
    "layout", "refsim.layouts.scales:SCALE_LAYOUTS", by="name", row="refsim.layouts.scales:scale_layout"
)
WEIGHT_LAYOUT = Name("layout", "refsim.checkpoints.layouts:CHECKPOINT_LAYOUTS", by="name")
SWIZZLE = Name("swizzle", "refsim.layouts.swizzles:SWIZZLES", by="name", row="refsim.layouts.swizzles:swizzle")
UNIT = Name("unit", "refsim.cli.products:units")
TARGET = Name("target", "refsim.cli.products:targets", row="refsim.targets:target_name")
SM = Name("target", "refsim.targets:names", row="refsim.targets:target_name", metavar="SM")
