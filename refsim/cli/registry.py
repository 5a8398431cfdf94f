"""Every command of the program: its name, where it is defined, and one line for the help page.

A new command adds one line here. The module is imported when the command is used, never for `refsim --help`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

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


SECTIONS: dict[str, dict[str, Listing]] = {
    "Numbers": {
        "formats": Listing("refsim.cli.commands.formats:command", "List number formats, or show everything about one."),
        "decode": Listing(
            "refsim.cli.commands.decode:command", "Decode codes: fields, value, neighbors, rounding interval."
        ),
        "encode": Listing("refsim.cli.commands.encode:command", "Encode values: the code and its rounding error."),
        "approx": Listing("refsim.cli.commands.approx:command", "Show results of ex2, lg2, ... and their errors."),
        "table": Listing("refsim.cli.commands.table:command", "Print the value of every code of a narrow format."),
        "diffpolicy": Listing(
            "refsim.cli.commands.diffpolicy:command", "Compare how two libraries convert the same numbers."
        ),
    },
    "Layouts": {
        "layout": Listing(
            "refsim.cli.commands.layout:command", "Map matrix elements to threads and registers, and back."
        ),
        "swizzle": Listing("refsim.cli.commands.swizzle:command", "Show where a swizzle moves bytes of shared memory."),
        "banks": Listing("refsim.cli.commands.banks:command", "Count bank conflicts of a shared-memory access."),
        "scales": Listing("refsim.cli.commands.scales:command", "Locate, shuffle, unshuffle and check scale factors."),
        "desc": Listing("refsim.cli.commands.desc:command", "Decode, encode and walk tensor-core and TMA descriptors."),
        "explore": Listing(
            "refsim.cli.commands.explore:command", "Write an interactive HTML page of formats and layouts."
        ),
    },
    "Dumps": {
        "show": Listing(
            "refsim.cli.commands.show:command", "Print a dump as numbers, given format, layout and scales."
        ),
        "diff": Listing("refsim.cli.commands.diff:command", "Compare two files of codes bit for bit."),
        "explain-diff": Listing(
            "refsim.cli.commands.explain_diff:command", "Find the cause of a difference between two results."
        ),
    },
    "Block scaling": {
        "quantize": Listing("refsim.cli.commands.blocks:quantize", "Quantize a safetensors file to a block format."),
        "dequantize": Listing("refsim.cli.commands.blocks:dequantize", "Convert such a file back to bf16, f16 or f32."),
    },
    "Tensor cores": {
        "mma": Listing("refsim.cli.commands.mma:command", "Compute what a tensor core returns, step by step if asked."),
        "numerics": Listing("refsim.cli.commands.numerics:command", "List the arithmetic of every tensor core."),
    },
    "Kernels": {
        "kernels": Listing("refsim.cli.commands.kernels:command", "List the declared kernels."),
        "verify": Listing(
            "refsim.cli.commands.verify:verify", "Compare compiled kernels with their oracles bit for bit."
        ),
        "replay": Listing("refsim.cli.commands.verify:replay", "Run one failed case again."),
        "new": Listing("refsim.cli.commands.new:command", "Write a first kernel with its oracle and passing tests."),
        "order": Listing("refsim.cli.commands.order:command", "Find the order in which a kernel adds its products."),
        "blame": Listing(
            "refsim.cli.commands.blame:command", "Find out if ptxas, the model or a race changes the bits."
        ),
        "bringup": Listing("refsim.cli.commands.bringup:command", "Compare a GPU with the model, suite by suite."),
    },
    "Simulated GPU": {
        "simulate": Listing("refsim.cli.commands.simulate:command", "Launch one entry of a PTX or CUDA file."),
        "run": Listing("refsim.cli.commands.run:command", "Run a GPU program or its tests without a GPU."),
        "ptx": Listing("refsim.cli.commands.ptx:command", "List and explain the simulated instructions."),
    },
    "About": {
        "doctor": Listing("refsim.cli.commands.doctor:command", "Check what is installed here and what is missing."),
        "explain": Listing(
            "refsim.cli.commands.explain:command", "Explain the code of an error, a finding or a status."
        ),
        "sources": Listing("refsim.cli.commands.sources:command", "List the documents that the model cites."),
        "completion": Listing(
            "refsim.cli.commands.completion:command", "Print the script that completes arguments in your shell."
        ),
    },
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
    """A command whose help lists its options under headings; `sections` maps a heading to names of parameters.

    Options that no section names, such as --as and --help, come last.
    """

    def __init__(self, *arguments: Any, sections: Mapping[str, Sequence[str]], **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under the headings of `sections`, then the remaining ones."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        records = {each.name: record for each in options if (record := each.get_help_record(ctx))}
        for heading, names in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([records.pop(name) for name in names])
        with formatter.section("Output"):
            formatter.write_dl([*records.values()])
