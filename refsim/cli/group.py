"""A group of commands that answers an unknown name with the nearest ones."""

import click

from refsim.errors import unknown


class Group(click.Group):
    """A click group whose mistyped commands are errors of the usual four lines."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            raise unknown("command", args[0], known, where=ctx.command_path if ctx.parent else "")
        return super().resolve_command(ctx, args)
