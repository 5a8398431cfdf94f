"""Workers of campaigns: processes of this machine, the caller's own process, or a Dask cluster.

Local processes are replaced one by one when they die. Workers of a cluster do the shards, one GPU each where they have
that resource. A lost worker costs its shard one try. A lost scheduler costs the time until a scheduler answers again;
its shards are handed out anew.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from refsim.campaigns.shards import LostError
from refsim.errors import Kind, RefsimError, missing_extra


class Inline(Executor):
    """An executor that runs each call at once, in the process and thread of the caller."""

    def submit(self, fn: "Callable[..., Any]", /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Run the call now and return its finished future."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class LocalWorkers(Executor):
    """A pool of processes, each with environment variables of its own (such as the GPU that it sees).

    A `ProcessPoolExecutor` breaks as a whole when one process dies. Here only that process is replaced, and only its
    shard raises LostError. Processes are spawned, since a GPU's context does not survive a fork. They end with this
    one.
    """

    def __init__(self, environments: "list[Mapping[str, str]]") -> None:
        self._free: SimpleQueue[_Seat] = SimpleQueue()
        self._seats = [_Seat(dict(each)) for each in environments]
        for seat in self._seats:
            self._free.put(seat)
        self._threads = ThreadPoolExecutor(len(self._seats))

    def submit(self, fn: "Callable[..., Any]", /, *args: Any, **kwargs: Any) -> "Future[Any]":
        return self._threads.submit(self._one, fn, args, kwargs)

    def _one(self, fn: "Callable[..., Any]", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seat = self._free.get()
        try:
            return seat.call(fn, args, kwargs)
        finally:
            self._free.put(seat)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes; kill the processes that are running a shard unless `wait`."""
        self._threads.shutdown(wait=False, cancel_futures=cancel_futures)
        for seat in self._seats:
            seat.close(kill=not wait)
        self._threads.shutdown(wait=True)


class _Seat:
    """A slot for one process at a time."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.pool: ProcessPoolExecutor | None = None
        self.is_closed = False

    def call(self, fn: "Callable[..., Any]", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call in the slot's process, started when needed; raise LostError where the process ends."""
        if self.is_closed:
            raise LostError("the workers are ending", blames=False)
        if self.pool is None:
            beginning = (os.getpid(), self.environment)
            self.pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, beginning)
        try:
            return self.pool.submit(fn, *args, **kwargs).result()
        except BrokenProcessPool as broken:
            self.pool.shutdown(wait=False)
            self.pool = None
            raise LostError("its process ended") from broken

    def close(self, *, kill: bool) -> None:
        """End the slot's process, by a signal with `kill`."""
        self.is_closed = True
        pool = self.pool
        if pool is None:
            return
        if kill:
            for process in list((pool._processes or {}).values()):
                process.kill()
        pool.shutdown(wait=not kill, cancel_futures=True)


def _begin(parent: int, environment: Mapping[str, str]) -> None:
    """Set a new worker's environment variables, and start a watch that ends it when its parent is gone."""
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if TYPE_CHECKING:
    from distributed import Client

PATIENCE = 60.0
"""Seconds that a scheduler may be away."""


class ClusterWorkers(Executor):
    """The workers of a scheduler, "tcp://host:8786", or of a cluster on this machine, "local".

    `resources`, such as {"GPU": 1}, is what a worker reserves for a shard (`dask worker --resources GPU=1`); workers
    without it get no shards. Raises RefsimError `missing-extra` (exit 4) without dask.distributed, `no-scheduler` (exit
    4) where no scheduler answers.
    """

    def __init__(
        self,
        address: str,
        resources: Mapping[str, float] | None = None,
        *,
        patience: float = PATIENCE,
        connect_seconds: float = 10.0,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.address, self.resources, self.patience = address, dict(resources or {}), patience
        self.tell = tell or (lambda line: None)
        self._door = threading.Lock()
        self._client = self._connected(connect_seconds)

    def _connected(self, seconds: float) -> "Client":
        """Return a new client of the scheduler. Raises RefsimError where there is none, or no dask."""
        try:
            from distributed import Client
        except ImportError as problem:
            raise missing_extra("--cluster needs dask.distributed", "pip install 'refsim[cluster]'") from problem
        try:
            if self.address == "local":
                return Client(processes=True, threads_per_worker=1, dashboard_address=None, set_as_default=False)
            return Client(self.address, timeout=seconds, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as problem:
            raise RefsimError(
                "no-scheduler",
                f"no scheduler answers at {self.address}",
                rule=str(problem),
                help="start one: dask scheduler; and workers: dask worker tcp://HOST:8786 --nthreads 1",
                kind=Kind.MISSING,
            ) from problem

    def submit(self, fn: "Callable[..., Any]", /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Submit one call; wait up to `patience` seconds while the scheduler is away."""
        client = self._present()
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()
        try:
            remote = client.submit(fn, *args, pure=False, retries=0, resources=self.resources or None, **kwargs)
        except Exception as problem:
            answer.set_exception(LostError(f"the scheduler is away: {problem}", blames=False))
            return answer
        remote.add_done_callback(lambda done: _settle(answer, done))
        return answer

    def _present(self) -> "Client":
        """Return a connected client, a new one where the scheduler has restarted."""
        with self._door:
            if self._client.status == "running":
                return self._client
            with suppress(Exception):
                self._client.close(timeout=1)
            began = time.monotonic()
            self.tell(f"the scheduler at {self.address} is away; waiting")
            while True:
                try:
                    self._client = self._connected(5.0)
                    return self._client
                except RefsimError:
                    if time.monotonic() - began > self.patience:
                        raise
                    time.sleep(0.5)

    def width(self) -> int:
        """Return how many workers the cluster has now."""
        return len(self._client.scheduler_info(n_workers=-1)["workers"])

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Close the client."""
        with suppress(Exception):
            self._client.close(timeout=10 if wait else 1)


def _settle(answer: "Future[Any]", done: Any) -> None:
    """Put the outcome of a Dask call into `answer`, as any executor would; called in a thread of Dask."""
    try:
        if done.status == "finished":
            answer.set_result(done.result())
            return
        if done.status == "error":
            problem = done.exception()
            is_lost = type(problem).__name__ in ("KilledWorker", "CommClosedError", "NoValidWorkerError")
            answer.set_exception(LostError(f"its worker ended: {problem}") if is_lost else problem)
            return
        answer.set_exception(LostError(f"the scheduler gave it up ({done.status})", blames=False))
    except Exception as problem:
        answer.set_exception(LostError(f"its result did not come: {problem}", blames=False))
