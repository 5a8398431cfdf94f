"""Every command of the program: its name, where it is defined, and one line for the help page.

A new command adds one line here. The module is imported when the command is used, never for `refsim --help`.
"""

from dataclasses import dataclass
from pkgutil import resolve_name

import click

from refsim.errors import unknown


@dataclass(frozen=True)
class Listing:
    """`target` is module:function of a click command or group, `summary` its line on the help page."""

    target: str
    summary: str

    def load(self, name: str) -> click.Command:
        """Import the command and return it under its name in the registry."""
        command: click.Command = resolve_name(self.target)
        command.name = name
        return command


_SUMMARIES = {
    "Numbers": {
        "formats": "List number formats, or show everything about one.",
        "decode": "Decode codes: fields, value, neighbors, rounding interval.",
        "encode": "Encode values: the code and its rounding error.",
        "approx": "Show results of ex2, lg2, ... and their errors.",
        "table": "Print the value of every code of a narrow format.",
        "diffpolicy": "Compare how two libraries convert the same numbers.",
    },
    "Layouts": {
        "layout": "Map matrix elements to threads and registers, and back.",
        "swizzle": "Show where a swizzle moves bytes of shared memory.",
        "banks": "Count bank conflicts of a shared-memory access.",
        "scales": "Locate, shuffle, unshuffle and check scale factors.",
        "desc": "Decode, encode and walk tensor-core and TMA descriptors.",
        "explore": "Write an interactive HTML page of formats and layouts.",
    },
    "Dumps": {
        "show": "Print a dump as numbers, given format, layout and scales.",
        "diff": "Compare two files of codes bit for bit.",
        "explain-diff": "Find the cause of a difference between two results.",
    },
    "Block scaling": {
        "quantize": "Quantize a safetensors file to a block format.",
        "dequantize": "Write the values of a checkpoint's quantized weights.",
        "files": "List the tensors of a checkpoint and their layouts.",
    },
    "Tensor cores": {
        "mma": "Compute what a tensor core returns, step by step if asked.",
        "numerics": "List the arithmetic of every tensor core.",
    },
    "Kernels": {
        "kernels": "List the declared kernels.",
        "verify": "Compare compiled kernels with their oracles bit for bit.",
        "replay": "Run one failed case again.",
        "new": "Write a first kernel with its oracle and passing tests.",
        "order": "Find the order in which a kernel adds its products.",
        "blame": "Find out if ptxas, the model or a race changes the bits.",
        "bringup": "Compare a GPU with the model, suite by suite.",
    },
    "Simulated GPU": {
        "simulate": "Launch one entry of a PTX or CUDA file.",
        "run": "Run a GPU program or its tests without a GPU.",
        "ptx": "List and explain the simulated instructions.",
    },
    "About": {
        "doctor": "Check what is installed here and what is missing.",
        "explain": "Explain the code of an error, a finding or a status.",
        "sources": "List the documents that the model cites.",
        "completion": "Print the script that completes arguments in your shell.",
    },
}
_ELSEWHERE = {
    "quantize": "refsim.cli.commands.blocks:quantize",
    "dequantize": "refsim.cli.commands.blocks:dequantize",
    "files": "refsim.cli.commands.blocks:files",
    "verify": "refsim.cli.commands.verify:verify",
    "replay": "refsim.cli.commands.verify:replay",
    "run": "refsim_run.command:command",
}
"""The module and function of commands that are not `command` in a module of `refsim.cli.commands` of their own name."""


def _listing(name: str, summary: str) -> Listing:
    """Return the listing of a command."""
    return Listing(_ELSEWHERE.get(name, f"refsim.cli.commands.{name.replace('-', '_')}:command"), summary)


SECTIONS = {
    section: {name: _listing(name, summary) for name, summary in commands.items()}
    for section, commands in _SUMMARIES.items()
}

COMMANDS = {name: listing for section in SECTIONS.values() for name, listing in section.items()}


class Group(click.Group):
    """A click group whose mistyped commands are errors of the usual four lines."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand. Raises RefsimError with the nearest names for an unknown one."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            raise unknown("command", args[0], known, where=ctx.command_path if ctx.parent else "")
        return super().resolve_command(ctx, args)


class Sectioned(click.Command):
    """A command whose help lists its options under the headings of their Options; those without come last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option) and (record := each.get_help_record(ctx)):
                sections.setdefault(getattr(each, "heading", "") or "Output", []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
