"""Workers on this machine: processes that are replaced one by one when they die, or the caller's own process."""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from queue import SimpleQueue
from typing import Any

from refsim.campaigns.shards import LostError


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
