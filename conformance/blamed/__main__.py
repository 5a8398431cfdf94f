"""Every kernel of the tree under every ptxas and level beside the simulator: python -m conformance.blamed -o FILE

    pip install --no-deps --target build/ptxas-13.5 nvidia-cuda-nvcc==13.5.37
    python -m conformance.blamed --ptxas build/ptxas-13.5 -o conformance/reports/h200/blame.json
    python -m conformance.blamed --ptxas build/ptxas-13.5 --assemble-only -o conformance/reports/ptxas.json
    python -m conformance.blamed --stand-in --kernel fp8_amax -o /tmp/blame.json

The first run needs a GPU, the second only asks each ptxas, the third has stand-ins for both. FILE is written anew after
every kernel, and a table beside it as .md. Of each kernel every entry is launched. Processes (`--jobs`; 0 for none)
simulate and assemble ahead of the GPU, and five more, each with a context of its own, take the planted miscompiles:
programs that edit a PTX and give it to a real ptxas. Ends with 1 where a kernel of the tree is not `none` or has an entry
that nothing launched (or, where nothing runs, where a ptxas refuses it that reads its version), or a planted miscompile is
not blamed and shrunk.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import refsim.device
from conformance.blamed.ahead import Ahead, ask_all, pool, ready
from conformance.blamed.miscompiles import Miscompile, planted_record
from conformance.blamed.report import Report
from conformance.blamed.stand_in import StandInSilicon, stand_in_ptxas
from conformance.blamed.subjects import PLANTED, kernels, planted
from refsim.blame import BuiltBy, Silicon, builds_of, examined, readers_of, shrunk
from refsim.errors import RefsimError

STAND_IN_RELEASES = ("13.0.88", "13.5.37")


def main(arguments: list[str]) -> int:
    asked = parsed(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="refsim-") as folder,
        pool(asked.jobs and len(PLANTED)) as others,
        pool(asked.jobs) as executor,
    ):
        silicon: Any = None
        if asked.stand_in:
            silicon = StandInSilicon()
            asked.ptxas = [stand_in_ptxas(Path(folder) / release, release) for release in STAND_IN_RELEASES]
        elif not asked.assemble_only:
            silicon = refsim.device.open(asked.device)
        found = builds_of(asked.ptxas, asked.opt or (0, 1, 2, 3), only_named=asked.stand_in or asked.only_ptxas)
        builds, older = readers_of(planted("sm_90a").text, found)
        report = Report(asked.output, silicon, builds, older, tuple(kernels()))
        names = [] if silicon is None else asked.planted or PLANTED
        cases = [
            others.submit(
                planted_record,
                Miscompile(name, builds, asked.stand_in, asked.device, asked.repeats, asked.seconds, Path(folder)),
            )
            for name in names
        ]
        waiting = asked_ahead(asked, executor, builds, silicon, report)
        run_kernels(asked, waiting, builds, silicon, report)
        for case in cases:
            report.planted(case.result())
    return report.exit_code


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m conformance.blamed", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--ptxas", type=Path, action="append", default=[])
    parser.add_argument("--only-ptxas", action="store_true")
    parser.add_argument("--opt", type=int, action="append")
    parser.add_argument("--kernel", action="append", help="these and no others")
    parser.add_argument("--planted", action="append", choices=PLANTED, help="these and no others")
    parser.add_argument("--problems", type=int, default=4, help="beside one for each entry")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that simulate and assemble")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="of shrinking one case")
    parser.add_argument("--device", default="cuda")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--assemble-only", action="store_true")
    how.add_argument("--stand-in", action="store_true")
    return parser.parse_args(arguments)


def asked_ahead(
    asked: argparse.Namespace,
    executor: Executor,
    builds: Sequence[BuiltBy],
    silicon: Silicon | None,
    report: Report,
) -> dict[str, Ahead]:
    """Every kernel is asked for, and stands in the report in the tree's order; one that has no PTX for this GPU says so."""
    target = None if silicon is None else silicon.target
    names = [name for name in kernels() if not asked.kernel or name in asked.kernel]
    found = dict(ask_all(executor, names, target, asked.problems, builds, runs=silicon is not None))
    waiting = {}
    for name in names:
        match found[name]:
            case RefsimError() as error:
                report.left_out(name, error)
            case Ahead() as ahead:
                waiting[name] = ahead
    return waiting


def run_kernels(
    asked: argparse.Namespace,
    waiting: Mapping[str, Ahead],
    builds: Sequence[BuiltBy],
    silicon: Silicon | None,
    report: Report,
) -> None:
    """Kernels as they become ready, each with its rows in the report; one that the simulator lacks something for says so."""
    for name in ready(waiting):
        ahead = waiting[name]
        print(name, file=sys.stderr, flush=True)
        try:
            found = examined(
                ahead.subject,
                builds,
                silicon,
                repeats=asked.repeats,
                models=ahead.models if silicon is not None else None,
                assembled=ahead.assembled,
            )
            case = None if silicon is None else shrunk(found, silicon, seconds=asked.seconds)
        except RefsimError as error:
            report.left_out(name, error)
        else:
            report.kernel(found, case)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
