"""Every kernel of the tree under every ptxas and level beside the simulator: python -m conformance.blamed -o FILE

    pip install --no-deps --target build/ptxas-13.5 nvidia-cuda-nvcc==13.5.37
    python -m conformance.blamed --ptxas build/ptxas-13.5 -o conformance/reports/h200/blame.json
    python -m conformance.blamed --ptxas build/ptxas-13.5 --assemble-only -o conformance/reports/ptxas.json
    python -m conformance.blamed --stand-in --kernel fp8_amax -o /tmp/blame.json

The first run needs a GPU, the second only asks each ptxas, the third has stand-ins for both. FILE is written anew after every
kernel, and a table beside it as .md. Then come planted miscompiles: programs that edit a PTX and give it to a real ptxas. Ends
with 1 where a kernel of the tree is not `none` (or, where nothing runs, where a ptxas refuses it that reads its version), or a
planted miscompile is not blamed and shrunk.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import refsim.device
from conformance.blamed.report import Report
from conformance.blamed.stand_in import StandInSilicon, stand_in_ptxas
from conformance.blamed.subjects import PLANTED, planted, subjects
from refsim.blame import BuiltBy, Silicon, builds_of, examined, shrunk
from refsim.errors import RefsimError

STAND_IN_RELEASES = ("13.0.88", "13.5.37")


def main(arguments: list[str]) -> int:
    asked = parsed(arguments)
    with tempfile.TemporaryDirectory(prefix="refsim-") as folder:
        silicon: Any = None
        if asked.stand_in:
            silicon = StandInSilicon()
            asked.ptxas = [stand_in_ptxas(Path(folder) / release, release) for release in STAND_IN_RELEASES]
        elif not asked.assemble_only:
            silicon = refsim.device.open(asked.device)
        builds = builds_of(asked.ptxas, asked.opt or (0, 1, 2, 3), only_named=asked.stand_in or asked.only_ptxas)
        report = Report(asked.output, silicon, builds)
        run_kernels(asked, builds, silicon, report)
        if silicon is not None:
            run_planted(asked, builds, silicon, report, Path(folder))
    return report.exit_code


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m conformance.blamed", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--ptxas", type=Path, action="append", default=[])
    parser.add_argument("--only-ptxas", action="store_true")
    parser.add_argument("--opt", type=int, action="append")
    parser.add_argument("--kernel", action="append", help="these and no others")
    parser.add_argument("--planted", action="append", choices=PLANTED, help="these and no others")
    parser.add_argument("--problems", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="of shrinking one case")
    parser.add_argument("--device", default="cuda")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--assemble-only", action="store_true")
    how.add_argument("--stand-in", action="store_true")
    return parser.parse_args(arguments)


def run_kernels(
    asked: argparse.Namespace, builds: tuple[BuiltBy, ...], silicon: Silicon | None, report: Report
) -> None:
    """A row of the report for each kernel; one that this GPU has no PTX for says so."""
    for name, made in subjects(None if silicon is None else silicon.target, asked.problems):
        if asked.kernel and name not in asked.kernel:
            continue
        print(name, file=sys.stderr, flush=True)
        try:
            found = examined(made(), builds, silicon, repeats=asked.repeats)
            case = None if silicon is None else shrunk(found, silicon, seconds=asked.seconds)
        except RefsimError as error:
            report.left_out(name, error)
        else:
            report.kernel(found, case)


def run_planted(
    asked: argparse.Namespace, builds: tuple[BuiltBy, ...], silicon: Silicon, report: Report, folder: Path
) -> None:
    """Each miscompile in one more ptxas, at its highest level alone."""
    subject, real = planted(silicon.target), builds[0].assembler
    for name, edit in PLANTED.items():
        if asked.planted and name not in asked.planted:
            continue
        print(f"planted {name}", file=sys.stderr, flush=True)
        behind = "" if asked.stand_in else real.program
        program = stand_in_ptxas(folder / name, real.release, (edit,), (3,), real=behind)
        wrong = builds_of([program], only_named=True)
        found = examined(subject, [*builds, *wrong], silicon, repeats=asked.repeats)
        report.planted(name, edit, found, shrunk(found, silicon, seconds=asked.seconds), program)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
