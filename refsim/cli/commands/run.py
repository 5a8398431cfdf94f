"""refsim run: a user's program or test suite on the simulated GPU, and a report on it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from refsim.cli.answers.program_report import document, has_findings, junit, rests_on_open_bits
from refsim.cli.arguments import file_option
from refsim.cli.delivery import AGREED, FAILED, INTERRUPTED, Answer, answers, require_writable, save
from refsim.cli.devices import arithmetic_option, without_option
from refsim.cli.extents import Positive, Whole
from refsim.cli.names import SM
from refsim.errors import Kind, RefsimError, unknown_code

if TYPE_CHECKING:
    from refsim.ptx import Arithmetic


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, metavar="-- COMMAND...", type=click.UNPROCESSED)
@click.option("--target", metavar="SM", type=SM, default="sm_90a", help="Architecture of the simulated GPU.")
@click.option("--policy", metavar="POLICY", default="eager", help="Schedule: eager, lazy or random.")
@click.option("--seed", default=0, type=Whole(0), help="Seed of a random schedule.")
@arithmetic_option
@without_option
@click.option("--seconds", default=600.0, type=Positive(), help="Time limit of a launch.")
@click.option("--test-seconds", type=Positive(), help="Time limit of each pytest test (default: none).")
@click.option("--strict", is_flag=True, help="Exit with 5 if a result is unverified or was refused.")
@file_option("--junit", "junit_file", help="Also write JUnit XML.")
@answers
def command(
    command: tuple[str, ...],
    target: str,
    policy: str,
    seed: int,
    arithmetic: "Arithmetic",
    without: tuple[str, ...],
    seconds: float,
    test_seconds: float | None,
    strict: bool,
    junit_file: Path | None,
) -> Answer:
    """Run a GPU program without a GPU, and report how much its results can be trusted.

    Python imports of GPU packages load refsim's versions instead, and their kernels run on the simulated GPU with every
    memory access checked. A feature that is not simulated fails with its name. The report says for each kernel if its bits
    are those of a chip. It lists findings, memory that was never freed, and calls that were refused.

    The exit code is 1 if the program failed or a kernel was found wrong.

    \b
      refsim run -- python vector_add.py
      refsim run --target sm_80 --test-seconds 60 -- pytest tests
      refsim run --junit kernels.xml -o report.json -- python -m package.main
    """
    from refsim.ptx import ARITHMETICS, POLICIES
    from refsim.standins.programs import run_program
    from refsim.standins.records import Said
    from refsim.standins.session import Settings
    from refsim.targets import target_named

    if not command:
        raise RefsimError("missing-argument", "there is no command to run", help="refsim run -- python program.py")
    for name, value, known in (("policy", policy, POLICIES), ("arithmetic", arithmetic, ARITHMETICS)):
        if value not in known:
            raise RefsimError(unknown_code(name), f"no {name} is called {value!r}", help=", ".join(known))
    if junit_file is not None:
        require_writable(junit_file)
    settings = Settings(target_named(target).name, policy, seed, seconds, test_seconds or 0.0, without, arithmetic)  # type: ignore[arg-type]
    done = run_program(command, settings)
    allowed = " ".join(each.what for kernel in done.record.kernels for each in kernel.warnings)
    unused = [name for name in without if "@" in name and f"waived by {name}:" not in allowed]
    if unused and done.record.kernels:
        done.record.found.append(Said("unused-waiver", f"{', '.join(unused)} allowed no finding", "--without"))
    if junit_file is not None:
        save(junit_file, junit(done).encode())
    failed = done.exit_code or has_findings(done.record)
    is_open = rests_on_open_bits(done.record) or done.silent
    inexact = Kind.INCONCLUSIVE.value if strict and is_open else AGREED
    return Answer(document(done), INTERRUPTED if done.is_interrupted else FAILED if failed else inexact)
