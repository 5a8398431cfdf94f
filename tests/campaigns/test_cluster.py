"""Shards on a Dask cluster of real processes: the same report, with a worker killed and with the scheduler begun anew."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refsim.campaigns.running import run
from refsim.campaigns.workers import ClusterWorkers
from refsim.errors import Kind, RefsimError
from tests.campaigns.pieces import done, plan

pytest.importorskip("distributed", reason="dask.distributed is not installed: pip install 'refsim[cluster]'")
MANY = pytest.mark.ci("a scheduler and its workers take seconds to begin: --refsim-profile=ci")
ROOT = Path(__file__).parents[2]


class Cluster:
    """A scheduler and workers, each a process that can be killed."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.processes.append(process)
        return process

    def scheduler(self) -> subprocess.Popen[bytes]:
        return self.begin("scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard", "--no-show")

    def worker(self, *words: str) -> subprocess.Popen[bytes]:
        return self.begin("worker", self.address, "--no-nanny", "--nthreads", "1", "--no-dashboard", *words)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    found.end()


def until(holds: Any) -> None:
    for _ in range(6000):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


def values(records: dict[str, list[Any]]) -> list[str]:
    return [each["value"] for found in records.values() for each in found]


def test_no_scheduler_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(RefsimError) as caught:
            ClusterWorkers(f"tcp://127.0.0.1:{held.getsockname()[1]}", connect_seconds=0.2)
    assert (caught.value.code, caught.value.kind) == ("no-scheduler", Kind.MISSING)


@MANY
def test_a_worker_that_is_killed_costs_nothing_but_time(cluster: Cluster, tmp_path: Path) -> None:
    cluster.scheduler()
    cluster.worker()
    dying = cluster.worker()
    asks = {"a": [{"seconds": 0.2} for _ in range(16)]}
    workers = ClusterWorkers(cluster.address, connect_seconds=120)
    until(lambda: workers.width() == 2)

    def watch(at: Any) -> None:
        if at.done == 4:
            dying.send_signal(signal.SIGKILL)

    try:
        assert values(run(plan(tmp_path, asks), workers, watch=watch, ahead=4)) == [f"a{n}" for n in range(16)]
    finally:
        workers.shutdown()


@MANY
def test_a_scheduler_that_begins_anew_is_given_what_it_lost(cluster: Cluster, tmp_path: Path) -> None:
    scheduler, said = cluster.scheduler(), []
    cluster.worker()
    asks = {"a": [{"seconds": 0.1} for _ in range(12)]}
    workers = ClusterWorkers(cluster.address, connect_seconds=120, tell=said.append)
    until(lambda: workers.width() == 1)

    def watch(at: Any) -> None:
        if at.done == 3:
            scheduler.kill()
            scheduler.wait()
            cluster.scheduler()
            cluster.worker()

    try:
        assert values(run(plan(tmp_path, asks), workers, watch=watch, ahead=4)) == [f"a{n}" for n in range(12)]
    finally:
        workers.shutdown()
    assert said


@MANY
def test_shards_go_to_workers_that_have_the_resource(cluster: Cluster, tmp_path: Path) -> None:
    cluster.scheduler()
    cluster.worker()
    able = cluster.worker("--resources", "GPU=1", "--name", "able")
    workers = ClusterWorkers(cluster.address, {"GPU": 1}, connect_seconds=120)
    until(lambda: workers.width() == 2)
    from refsim.campaigns.journal import CampaignJournal

    whole = plan(tmp_path, {"a": [{} for _ in range(6)]})
    try:
        with CampaignJournal(tmp_path / "j", whole) as journal:
            run(whole, workers, journal=journal)
            names = {each.worker for each in journal.kept().values()}
    finally:
        workers.shutdown()
    assert names == {f"{socket.gethostname()}:{able.pid}"}
    assert len(done(tmp_path)) == 6
