"""The start and the end of a program under `refsim run`: stand-ins are installed before its first line, and its
record is written at its end. The folder in the variable REFSIM_RUN holds the settings and gets one file per
process."""

import atexit
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from refsim_run.session import GpuSession

VARIABLE = "REFSIM_RUN"
SETTINGS = "settings.json"
RECORD, STARTED, USED = "process-{}.json", "started-{}", "used-{}"
"""Files for a process's record, its start and its use of the GPU; {} is a unique name, as a process may call exec."""
_ENDS = ("_exit", "execv", "execve")
"""Functions of os after which no code of this program runs, not even handlers of atexit."""


def is_started() -> bool:
    """Return whether this process belongs to a run of `refsim run`."""
    return VARIABLE in os.environ


@dataclass
class RecordKeeper:
    """Writes what a process did into a folder when the process seems to end; a child by fork has its own record."""

    folder: Path
    session: "GpuSession"
    name: str = field(default_factory=lambda: uuid4().hex)
    is_used: bool = False

    def begin(self) -> None:
        """Mark in the folder that this process started."""
        with suppress(OSError):
            (self.folder / STARTED.format(self.name)).touch()

    def use(self) -> None:
        """Mark that this process uses the GPU, so that a missing record is reported."""
        if not self.is_used:
            self.is_used = True
            with suppress(OSError):
                (self.folder / USED.format(self.name)).touch()

    def forked(self) -> None:
        """Start a record of its own for a child by fork, without what its parent did."""
        self.session.forget()
        self.name, self.is_used = uuid4().hex, False
        self.begin()

    def write(self) -> None:
        """Write the current record; do nothing where the run is over and its folder is gone."""
        made = self.folder / RECORD.format(self.name)
        unfinished = made.with_suffix(".part")
        with suppress(FileNotFoundError):
            unfinished.write_text(json.dumps(self.session.record().to_json()))
            unfinished.replace(made)

    def before(self, module: ModuleType, name: str) -> None:
        """Replace a function of a module that never returns, so that the record is written before it."""
        theirs: Callable[..., Any] = getattr(module, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.write()
            return theirs(*args, **kwargs)

        setattr(module, name, call)

    def on_termination(self) -> None:
        """Write the record on SIGTERM and end as usual, unless the program has its own handler."""

        def end(number: int, frame: FrameType | None) -> None:
            self.write()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, end)


def start() -> None:
    """Begin the session of this process from the folder's settings; do nothing outside a run."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    from refsim_run.memory import poison_empty, vary_poison
    from refsim_run.seams import install
    from refsim_run.session import Settings, begin

    session = begin(Settings.of_json(json.loads(Path(folder, SETTINGS).read_text())))
    install()
    vary_poison(folder)
    poison_empty()
    keeper = RecordKeeper(Path(folder), session)
    session.memory.begun = keeper.use
    keeper.begin()
    atexit.register(keeper.write)
    os.register_at_fork(after_in_child=keeper.forked)
    for name in _ENDS:
        keeper.before(os, name)
    keeper.on_termination()
