"""The journal of a campaign: one SQLite file that holds every finished shard completely, however the program ends."""

import fcntl
import json
import os
import sqlite3
from pathlib import Path
from types import TracebackType

from refsim.campaigns.shards import CampaignPlan, FinishedShard, Shard
from refsim.device.cache import digest
from refsim.errors import Kind, RefsimError

_FORM = 2
_TABLES = """
CREATE TABLE campaign (form INTEGER NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL, rests_on TEXT NOT NULL);
CREATE TABLE shard (
    key TEXT PRIMARY KEY, series TEXT NOT NULL, number INTEGER NOT NULL,
    record TEXT NOT NULL, digest TEXT NOT NULL, worker TEXT NOT NULL, seconds REAL NOT NULL
);
"""


class CampaignJournal:
    """Finished shards of one plan in one file; open it with `with`. One process at a time may hold it.

    A file of another campaign is refused, since its records belong to other shards.
    Raises RefsimError: `other-campaign` (exit 2), `journal-in-use` (exit 2), `bad-file` (exit 3), `cannot-write` (exit
    4).
    """

    def __init__(self, path: Path, plan: CampaignPlan) -> None:
        self.path, self.plan = path, plan

    def __enter__(self) -> "CampaignJournal":
        is_new = not os.path.lexists(self.path)
        try:
            self._lock = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as problem:
            raise self._refused((problem.strerror or str(problem)).lower()) from problem
        try:
            self._own()
            self._open()
        except BaseException:
            os.close(self._lock)
            if is_new:
                self.path.unlink(missing_ok=True)
            raise
        return self

    def _own(self) -> None:
        """Lock the file with flock: SQLite's own locks would go when any descriptor of the file is closed."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            raise RefsimError(
                "journal-in-use",
                "another process is running this campaign",
                where=str(self.path),
                rule="a shard is done once",
                help="wait for it, or name another journal",
            ) from problem

    def _open(self) -> None:
        """Connect to the file, create its tables where it is new, and check that it belongs to the plan."""
        try:
            self._base = sqlite3.connect(self.path, isolation_level=None)
            if self._base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                self._begin()
            found = self._base.execute("SELECT form, name, digest, rests_on FROM campaign").fetchone()
        except sqlite3.OperationalError as problem:
            if "no such" in str(problem):
                raise self._foreign(str(problem)) from problem
            raise self._refused(str(problem)) from problem
        except sqlite3.DatabaseError as problem:
            raise self._foreign(str(problem)) from problem
        if found is None or found[0] != _FORM:
            raise self._foreign("it has no campaign of a form that this version writes")
        if found[2] != self.plan.digest:
            raise RefsimError(
                "other-campaign",
                f"this journal is of another campaign: {_changed(found[1], json.loads(found[3]), self.plan)}",
                where=str(self.path),
                rule="what was found before holds only for the same kernels, options and versions",
                help="name another --journal, or remove this one",
            )

    def _begin(self) -> None:
        """Create the tables and write the plan's facts, in one transaction."""
        facts = json.dumps(dict(self.plan.rests_on), sort_keys=True)
        self._base.execute("BEGIN EXCLUSIVE")
        for statement in filter(str.strip, _TABLES.split(";")):
            self._base.execute(statement)
        row = (_FORM, self.plan.name, self.plan.digest, facts)
        self._base.execute("INSERT INTO campaign VALUES (?, ?, ?, ?)", row)
        self._base.execute("COMMIT")

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._base.close()
        os.close(self._lock)

    def kept(self) -> dict[str, FinishedShard]:
        """Return every finished shard by its key.

        Raises RefsimError `bad-file` for a damaged file and for a record that was changed; SQLite checks its own pages
        only.
        """
        done = {}
        try:
            for key, record, kept, worker, seconds in self._base.execute(
                "SELECT key, record, digest, worker, seconds FROM shard"
            ):
                if kept != digest(self.plan.digest, key, record):
                    raise self._foreign(f"the record of shard {key} was changed")
                done[key] = FinishedShard(json.loads(record), worker, seconds)
        except (sqlite3.DatabaseError, ValueError) as problem:
            raise self._foreign(str(problem)) from problem
        return done

    def keep(self, shard: Shard, done: FinishedShard) -> None:
        """Add a finished shard, on disk on return. Raises RefsimError `cannot-write` where the disk is full."""
        record = json.dumps(done.record)
        kept = digest(self.plan.digest, shard.key, record)
        row = (shard.key, shard.series, shard.number, record, kept, done.worker, done.seconds)
        try:
            self._base.execute("INSERT INTO shard VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        except sqlite3.DatabaseError as problem:
            raise self._refused(str(problem)) from problem

    def _refused(self, what: str) -> RefsimError:
        return RefsimError(
            "cannot-write",
            f"cannot keep finished shards: {what}",
            where=str(self.path),
            rule="a shard counts once it is in the journal",
            help="what was kept stays; make room or name a file that can be written, and the same command goes on",
            kind=Kind.MISSING,
        )

    def _foreign(self, what: str) -> RefsimError:
        return RefsimError(
            "bad-file",
            f"not a journal of a campaign: {what}",
            where=str(self.path),
            help="name another --journal, or remove this one",
            kind=Kind.UNREADABLE,
        )


def facts_of(path: Path | None) -> dict[str, str]:
    """Return the facts that the campaign of a journal depends on; {} where no journal can be read."""
    if path is None or not path.is_file():
        return {}
    try:
        base = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            facts: dict[str, str] = json.loads(base.execute("SELECT rests_on FROM campaign").fetchone()[0])
        finally:
            base.close()
    except (sqlite3.Error, ValueError, TypeError):
        return {}
    return facts


def _changed(name: str, facts: dict[str, str], plan: CampaignPlan) -> str:
    """Return how two campaigns differ, as far as a name describes it."""
    if name != plan.name:
        return f"of {name}, not of {plan.name}"
    names = [key for key in sorted({*facts, *plan.rests_on}) if facts.get(key) != plan.rests_on.get(key)]
    return f"other {', '.join(names)}" if names else "other shards"
