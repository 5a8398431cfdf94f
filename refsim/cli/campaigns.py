"""Options that divide the work of a command among workers: --jobs, --cluster, --journal, --report."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refsim.cli import console
from refsim.cli.extents import Whole
from refsim.cli.options import Options, option
from refsim.cli.progress import Passed, reporting
from refsim.errors import Kind, RefsimError

if TYPE_CHECKING:
    from refsim.campaigns.shards import CampaignPlan

MOST_JOBS = 1024


class Division(Options):
    """How the work is divided, and where finished shards are kept: the options --jobs, --cluster, --journal, --report."""

    jobs: int | None = option("Run shards in N processes; with --device cuda, on a GPU each.", type=Whole(1, MOST_JOBS))
    cluster: str | None = option(
        "Run shards on a Dask scheduler's workers (tcp://HOST:8786), or local.", metavar="ADDRESS"
    )
    journal: Path | None = option("Keep finished shards in FILE (SQLite); the same command continues the run.")
    report: Path | None = option("Write JSON without times and workers, for comparison.")

    def __post_init__(self) -> None:
        if self.jobs is not None and self.cluster is not None:
            raise RefsimError(
                "usage", "--jobs is of this machine, --cluster of a scheduler's workers", help="give one of them"
            )

    @property
    def is_asked_for(self) -> bool:
        """Return whether any option of a division was given."""
        return self != Division()


def outcome(plan: "CampaignPlan", division: Division, device: str) -> dict[str, list[Mapping[str, Any]]]:
    """Run the shards of a plan and return the records of each series. Shows progress on a terminal."""

    from refsim.campaigns.journal import CampaignJournal
    from refsim.campaigns.running import Standing, run

    with reporting(sys.stderr) as line:

        def watch(standing: Standing) -> None:
            """Show how many shards are finished and how many were lost."""
            if line is not None and standing.latest is not None:
                lost = f", {standing.lost} lost" if standing.lost else ""
                line(Passed(standing.latest.series, f"shards{lost}", standing.done, standing.planned))

        kept = nullcontext() if division.journal is None else CampaignJournal(division.journal, plan)
        with kept as journal, _workers(division, device) as (executor, ahead):
            if journal is not None and (count := len(journal.kept())):
                console.tell(
                    f"going on: {count} of {len(plan.shards)} shards are finished already ({division.journal})"
                )
            return run(plan, executor, journal=journal, watch=watch, ahead=ahead)


@contextmanager
def _workers(division: Division, device: str) -> Iterator[tuple[Executor, int]]:
    """Yield the executor of a division and how many shards it gets at a time. An interrupt abandons the workers."""
    from refsim.campaigns.workers import Inline, LocalWorkers

    executor: Executor
    ahead = 1
    if division.cluster is not None:
        from refsim.campaigns.workers import ClusterWorkers

        executor = ClusterWorkers(
            division.cluster, {"GPU": 1} if device.startswith("cuda") else None, tell=console.tell
        )
        ahead = max(4, 2 * executor.width())
    elif division.jobs is None or division.jobs == 1:
        executor = Inline()
    else:
        executor, ahead = LocalWorkers(_environments(division.jobs, device)), division.jobs + 1
    try:
        yield executor, ahead
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    executor.shutdown()


def _environments(jobs: int, device: str) -> list[Mapping[str, str]]:
    """Return the environment variables of each worker: one NumPy thread, and one of the visible GPUs in turn."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    if device != "cuda" and not device.startswith("cuda:pycuda"):
        return [one_thread] * jobs
    gpus = visible_gpus()
    return [one_thread | {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} for number in range(jobs)]


def visible_gpus() -> list[str]:
    """Return the GPUs of this process as CUDA_VISIBLE_DEVICES names them. Raises RefsimError without any."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return [name.strip() for name in named.split(",") if name.strip()]
    tool = shutil.which("nvidia-smi")
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False).stdout if tool else ""
    count = sum(line.startswith("GPU ") for line in listed.splitlines())
    if not count:
        what = "nvidia-smi lists no GPU to share among jobs"
        raise RefsimError("no-cuda-device", what, help="name them: CUDA_VISIBLE_DEVICES=0,1", kind=Kind.MISSING)
    return [str(number) for number in range(count)]
