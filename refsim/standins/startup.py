"""What happens in a program that `refsim run` starts, before its first line: stand-ins are put in place, and at its end
its record is written. The folder named by REFSIM_RUN holds the settings, and gets a file of each process."""

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
    from refsim.standins.session import GpuSession

VARIABLE = "REFSIM_RUN"
SETTINGS = "settings.json"
RECORD, STARTED, USED = "process-{}.json", "started-{}", "used-{}"
"""A process that started, one that used its GPU, what it did; {} names the process, as one program may follow another in it."""
_ENDS = ("_exit", "execv", "execve")
"""Functions of os behind which nothing of this program runs, not even what waits for its end."""


def is_started() -> bool:
    """Whether this process belongs to a run."""
    return VARIABLE in os.environ


@dataclass
class RecordKeeper:
    """Writes what a process did into a folder, as often as it seems to end; a child by fork has a record of its own."""

    folder: Path
    session: "GpuSession"
    name: str = field(default_factory=lambda: uuid4().hex)
    is_used: bool = False

    def begin(self) -> None:
        """From now on there is this process."""
        with suppress(OSError):
            (self.folder / STARTED.format(self.name)).touch()

    def use(self) -> None:
        """It uses the GPU: should it never write its record, that is told."""
        if not self.is_used:
            self.is_used = True
            with suppress(OSError):
                (self.folder / USED.format(self.name)).touch()

    def forked(self) -> None:
        """This is a child by fork: what its parent did is not its own."""
        self.session.forget()
        self.name, self.is_used = uuid4().hex, False
        self.begin()

    def write(self) -> None:
        """The record as it is now; nothing where the run is over and its folder gone."""
        made = self.folder / RECORD.format(self.name)
        unfinished = made.with_suffix(".part")
        with suppress(FileNotFoundError):
            unfinished.write_text(json.dumps(self.session.record().to_json()))
            unfinished.replace(made)

    def before(self, module: ModuleType, name: str) -> None:
        """Write before a function of a module that never returns."""
        theirs: Callable[..., Any] = getattr(module, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.write()
            return theirs(*args, **kwargs)

        setattr(module, name, call)

    def on_termination(self) -> None:
        """Write when the process is asked to end, unless the program has something to do then: it ends as it would have."""

        def end(number: int, frame: FrameType | None) -> None:
            self.write()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, end)


def start() -> None:
    """Begin the session of this process as the folder says; nothing where no run asked for it."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    from refsim.standins.seams import install
    from refsim.standins.session import Settings, begin

    session = begin(Settings.of_json(json.loads(Path(folder, SETTINGS).read_text())))
    install()
    keeper = RecordKeeper(Path(folder), session)
    session.memory.begun = keeper.use
    keeper.begin()
    atexit.register(keeper.write)
    os.register_at_fork(after_in_child=keeper.forked)
    for name in _ENDS:
        keeper.before(os, name)
    keeper.on_termination()
