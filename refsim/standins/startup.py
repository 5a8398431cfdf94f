"""What happens in a program that `refsim run` starts, before its first line: stand-ins are put in place, and at its end
its record is written. The folder named by REFSIM_RUN holds the settings, and gets a file of each process."""

import atexit
import json
import os
from pathlib import Path

VARIABLE = "REFSIM_RUN"
SETTINGS = "settings.json"
RECORD = "process-{}.json"
STARTED = "started-{}"


def is_started() -> bool:
    """Whether this process belongs to a run."""
    return VARIABLE in os.environ


def start() -> None:
    """Begin the session of this process as the folder says; nothing where no run asked for it."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    from refsim.standins.seams import install
    from refsim.standins.session import Settings, begin

    session = begin(Settings.of_json(json.loads(Path(folder, SETTINGS).read_text())))
    install()
    Path(folder, STARTED.format(os.getpid())).touch()

    def write() -> None:
        made = Path(folder, RECORD.format(os.getpid()))
        unfinished = made.with_suffix(".part")
        unfinished.write_text(json.dumps(session.record().to_json()))
        unfinished.replace(made)

    atexit.register(write)
