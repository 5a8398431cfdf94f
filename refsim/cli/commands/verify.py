"""refsim verify and refsim replay: compiled kernels against their oracles, on a simulated or a real GPU."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from refsim.cli.delivery import Answer, answers
from refsim.cli.devices import device_options, need, opened, without_option
from refsim.cli.extents import Whole
from refsim.cli.names import Name
from refsim.cli.progress import reporting
from refsim.render import Column, Document, Table, Wording

if TYPE_CHECKING:
    from collections.abc import Mapping

    from refsim.testing import Verdict

COLUMNS = (
    Column("status", strong=True),
    Column("kernel"),
    Column("cases", align="right"),
    Column("elements", align="right"),
    Column("differing", label="differing", align="right"),
    Column("seconds", label="time", align="right", unit="s", drop=2),
    Column("promise", drop=3),
)
_HASH_KEYS = (
    "device",
    "without",
    "driver",
    "compiler",
    "ptx_origin",
    "ptx_flags",
    "ptx_sha256",
    "assembler",
    "cubin_flags",
    "cubin_sha256",
)
_SEVERITY = (70, 1, 4, 5)


@click.command()
@click.argument("names", nargs=-1, metavar="[KERNEL...]", type=Name("kernel", "refsim.testing:find_kernels", by="name"))
@device_options
@without_option
@click.option("--profile", default="quick", show_default=True, help="quick, ci or night: how many cases are generated.")
@click.option("--cases", type=Whole(0), help="Generated cases of each kernel, instead of the profile's.")
@click.option("--seed", type=Whole(0), help="Draw the cases of this seed.")
@click.option(
    "--failures",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("failures"),
    show_default=True,
    help="Where replay cases are written.",
)
@click.option(
    "--kernels",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Declare kernels: a Python file with KERNELS (default: [tool.refsim], else the bundled ones).",
)
@answers
def verify(
    names: tuple[str, ...],
    device_name: str,
    target: str | None,
    profile: str,
    cases: int | None,
    seed: int | None,
    failures: Path,
    files: tuple[Path, ...],
    without: tuple[str, ...],
) -> Answer:
    """Run compiled kernels on generated problems and compare every bit with the oracle.

    Special values come first (NaN, infinities, ties, near-overflow, odd sizes and offsets, more than 2^20 elements), then
    problems that Hypothesis generates. A failure is shrunk and written as a case that `refsim replay` repeats.

    \b
      refsim verify
      refsim verify fp8_quantize --device cuda --profile ci
    """
    need("testing", "hypothesis")
    _quiet_hypothesis()
    from refsim.testing import find_kernels, kernel_named, run_campaign

    chosen = [kernel_named(name, files or None) for name in names] if names else find_kernels(files or None)
    device = opened(device_name, target, without)
    verdicts = []
    with reporting(sys.stderr) as report:
        for kernel in chosen:
            verdicts.append(
                run_campaign(
                    kernel, device, profile=profile, cases=cases, seed=seed, failures_dir=failures, on_progress=report
                )
            )
    return _answer(verdicts)


@click.command()
@click.argument("case", type=click.Path(path_type=Path))
@device_options
@without_option
@click.option("--trust", is_flag=True, help="Run the Python file that the case names, wherever it lies.")
@answers
def replay(case: Path, device_name: str, target: str | None, without: tuple[str, ...], trust: bool) -> Answer:
    """Run the one problem of a CASE file that a failed `refsim verify` wrote.

    The case names the Python file that declares its kernel; that file is executed. One outside this project (the folder
    with pyproject.toml or .git above here, or above the case) runs after a question, or with --trust.
    """
    need("testing", "hypothesis")
    _quiet_hypothesis()
    from refsim.testing import replay_case
    from refsim.testing.replay import file_to_trust

    file = None if trust else file_to_trust(case)
    if file is not None and sys.stdin.isatty() and sys.stderr.isatty():
        trust = click.confirm(f"{case} names {file}, which lies outside this project. Run it?", err=True)
    if file is not None and not trust:
        replay_case(case, opened("sim", None))  # refuses
    return _answer([replay_case(case, opened(device_name, target, without), trust=trust)])


def _quiet_hypothesis() -> None:
    """Hypothesis keeps notes of its own beside the working directory, even without a database: put them in the cache."""
    from hypothesis.configuration import set_hypothesis_home_dir

    from refsim.device.cache import cache_directory

    set_hypothesis_home_dir(cache_directory() / "hypothesis")


def _answer(verdicts: "list[Verdict]") -> Answer:
    rows = tuple(
        (
            verdict.status,
            verdict.kernel,
            verdict.cases,
            verdict.elements,
            verdict.differing,
            f"{verdict.seconds:.1f}",
            verdict.promise,
        )
        for verdict in verdicts
    )
    parts: list[Table | Wording] = [Table(COLUMNS, rows, key="verdicts")]
    for verdict in verdicts:
        if not verdict or verdict.notes:
            parts.append(Wording(tuple(verdict.lines()), verdict.to_json(), key=verdict.kernel))
    parts += _devices([verdict.device for verdict in verdicts])
    codes = {verdict.exit_code for verdict in verdicts} - {0}
    return Answer(Document(tuple(parts), "verdicts"), next((code for code in _SEVERITY if code in codes), 0))


def _devices(devices: "list[Mapping[str, str]]") -> list[Wording]:
    """What the kernels ran on; what differs from one kernel file to the next stands under its name."""
    files = {facts.get("kernel_file", ""): dict(facts) for facts in devices}
    if not files:
        return []
    first, *others = files.values()
    shared = {key: value for key, value in first.items() if all(facts.get(key) == value for facts in others)}
    of_files = {
        name: {key: value for key, value in facts.items() if key not in shared} for name, facts in files.items()
    }
    whole = Wording(_hash_lines(shared), shared, key="device")
    return [
        whole,
        *(Wording((name, *_hash_lines(facts)), facts, key=name) for name, facts in of_files.items() if facts),
    ]


def _hash_lines(facts: "Mapping[str, str]") -> tuple[str, ...]:
    return tuple(f"{key:15}  {facts[key]}" for key in _HASH_KEYS if key in facts)
