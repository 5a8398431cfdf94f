"""Every command of the program: its name, where it is defined, and one line for the help page.

Adding a command is one line here. The module is imported when the command is used, never for `refsim --help`.
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
        """The command itself, under the name that the registry gives it."""
        command: click.Command = resolve_name(self.target)
        command.name = name
        return command


SECTIONS: dict[str, dict[str, Listing]] = {
    "Numbers": {
        "formats": Listing("refsim.cli.commands.formats:command", "All number formats, or all that is derived of one."),
        "decode": Listing(
            "refsim.cli.commands.decode:command", "What codes stand for: fields, value, neighbours, interval."
        ),
        "encode": Listing("refsim.cli.commands.encode:command", "The code of a value, and how far off it is."),
        "approx": Listing(
            "refsim.cli.commands.approx:command", "What a chip's special functions return, and how far off that is."
        ),
        "table": Listing("refsim.cli.commands.table:command", "The value of every code of a narrow format."),
        "diffpolicy": Listing(
            "refsim.cli.commands.diffpolicy:command", "Where two libraries convert the same number differently."
        ),
    },
    "Layouts": {
        "layout": Listing("refsim.cli.commands.layout:command", "Who holds an element, and what a thread holds."),
        "swizzle": Listing("refsim.cli.commands.swizzle:command", "Where a swizzle moves bytes of shared memory."),
        "banks": Listing("refsim.cli.commands.banks:command", "Bank conflicts of an access to shared memory."),
        "scales": Listing("refsim.cli.commands.scales:command", "Where scale factors lie; shuffle and unshuffle them."),
        "desc": Listing("refsim.cli.commands.desc:command", "Descriptors: decode, encode, walk the bytes they name."),
        "explore": Listing("refsim.cli.commands.explore:command", "All of these as a page to look around in."),
    },
    "Dumps": {
        "show": Listing("refsim.cli.commands.show:command", "A dump as numbers, through format, layout and scales."),
        "diff": Listing("refsim.cli.commands.diff:command", "Two files of codes, bit for bit."),
        "explain-diff": Listing("refsim.cli.commands.explain_diff:command", "What makes two results differ."),
    },
    "Block scaling": {
        "quantize": Listing("refsim.cli.commands.blocks:quantize", "A safetensors file in blocks that share a scale."),
        "dequantize": Listing("refsim.cli.commands.blocks:dequantize", "The values that such a file stands for."),
    },
    "Tensor cores": {
        "mma": Listing(
            "refsim.cli.commands.mma:command", "What a tensor core returns; with --explain why, step by step."
        ),
        "numerics": Listing("refsim.cli.commands.numerics:command", "The arithmetic of every tensor core: list, bits."),
    },
    "Kernels": {
        "kernels": Listing("refsim.cli.commands.kernels:command", "The kernels that are declared here."),
        "verify": Listing("refsim.cli.commands.verify:verify", "Compiled kernels against their oracles, bit for bit."),
        "replay": Listing("refsim.cli.commands.verify:replay", "One failed case again."),
        "new": Listing("refsim.cli.commands.new:command", "A kernel to begin with: CUDA, oracle and tests that pass."),
        "order": Listing(
            "refsim.cli.commands.order:command", "In which order a kernel adds, and whether its batch counts."
        ),
        "blame": Listing("refsim.cli.commands.blame:command", "Whether ptxas, the model or a race makes bits differ."),
        "bringup": Listing(
            "refsim.cli.commands.bringup:command", "Whether a GPU does what the model says, suite by suite."
        ),
    },
    "Simulated GPU": {
        "simulate": Listing("refsim.cli.commands.simulate:command", "One launch of an entry of a PTX or CUDA file."),
        "run": Listing("refsim.cli.commands.run:command", "Other people's programs and tests on the simulated GPU."),
        "ptx": Listing("refsim.cli.commands.ptx:command", "Instruction forms: coverage, explain."),
    },
    "About": {
        "doctor": Listing("refsim.cli.commands.doctor:command", "What is installed here, and what is missing."),
        "explain": Listing("refsim.cli.commands.explain:command", "What the code of an error or finding means."),
        "sources": Listing("refsim.cli.commands.sources:command", "The documents that the model cites."),
        "completion": Listing(
            "refsim.cli.commands.completion:command", "The script that completes arguments in your shell."
        ),
    },
}

COMMANDS = {name: listing for section in SECTIONS.values() for name, listing in section.items()}


class Group(click.Group):
    """A click group whose mistyped commands are errors of the usual four lines."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            raise unknown("command", args[0], known, where=ctx.command_path if ctx.parent else "")
        return super().resolve_command(ctx, args)
