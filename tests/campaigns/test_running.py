"""A plan gives one report: whoever does its shards, in whatever order they end, however often it was interrupted."""

import sqlite3
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from refsim.campaigns.journal import CampaignJournal
from refsim.campaigns.running import Standing, run
from refsim.campaigns.shards import LostError
from refsim.campaigns.workers import Inline, LocalWorkers
from refsim.errors import Kind, RefsimError
from tests.campaigns.pieces import done, plan

ASKS: dict[str, list[dict[str, Any]]] = {"a": [{}, {}, {}], "b": [{}, {"ends": True}, {}, {}], "c": [{}]}
VALUES = {"a": ["a0", "a1", "a2"], "b": ["b0", "b1"], "c": ["c0"]}


class Backwards(Executor):
    """Holds what is submitted and does it last first, as soon as somebody waits."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Any, Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.held.append((future, fn, args))
        return future

    def drain(self) -> None:
        for future, fn, args in reversed(self.held):
            if future.set_running_or_notify_cancel():
                future.set_result(fn(*args))


def backwards(monkeypatch: pytest.MonkeyPatch) -> Backwards:
    """One that is drained where the campaign waits."""
    from refsim.campaigns import running

    executor, waited = Backwards(), running.wait
    monkeypatch.setattr(running, "wait", lambda *given, **named: (executor.drain(), waited(*given, **named))[1])
    return executor


def values(records: dict[str, list[Any]]) -> dict[str, list[str]]:
    return {series: [each["value"] for each in found] for series, found in records.items()}


def test_a_series_ends_where_a_record_ends_it_in_one_process(tmp_path: Path) -> None:
    assert values(run(plan(tmp_path, ASKS), Inline(), ahead=1)) == VALUES
    assert done(tmp_path) == ["a0", "a1", "a2", "b0", "b1", "c0"]


def test_shards_that_end_in_another_order_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert values(run(plan(tmp_path, ASKS), backwards(monkeypatch))) == VALUES
    assert done(tmp_path)[0] == "c0"


@pytest.mark.parametrize("is_backwards", [False, True])
def test_the_earliest_of_two_ends_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_backwards: bool) -> None:
    asks: dict[str, list[dict[str, Any]]] = {"a": [{}, {"ends": True}, {"ends": True}, {}]}
    chosen = backwards(monkeypatch) if is_backwards else Inline()
    assert values(run(plan(tmp_path, asks), chosen)) == {"a": ["a0", "a1"]}


def test_threads_give_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert values(run(plan(tmp_path, ASKS), pool)) == VALUES


def test_what_ends_the_campaign_leaves_no_later_series(tmp_path: Path) -> None:
    from dataclasses import replace

    whole = replace(plan(tmp_path, ASKS), stops=lambda record: record["status"] == "fail")
    assert values(run(whole, Inline())) == {"a": VALUES["a"], "b": VALUES["b"], "c": []}


def test_the_first_error_of_the_plan_is_the_one_that_is_raised_with_all_its_fields(tmp_path: Path) -> None:
    asks = {"a": [{}, {"fails": True}, {}], "b": [{"fails": True}]}
    with pytest.raises(RefsimError) as caught:
        run(plan(tmp_path, asks), Inline())
    error = caught.value
    assert (error.code, error.what, error.where, error.help) == ("bad-shard", "shard a1 cannot be done", "here", "none")
    assert error.kind is Kind.USAGE


@pytest.mark.parametrize("is_backwards", [False, True])
def test_an_error_behind_the_end_of_a_series_is_nobody_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_backwards: bool
) -> None:
    asks: dict[str, list[dict[str, Any]]] = {"a": [{}, {"ends": True}, {"fails": True}], "b": [{}]}
    chosen = backwards(monkeypatch) if is_backwards else Inline()
    assert values(run(plan(tmp_path, asks), chosen)) == {"a": ["a0", "a1"], "b": ["b0"]}


def test_every_finished_shard_is_told(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    run(plan(tmp_path, {"a": [{}, {}]}), Inline(), watch=lambda at: seen.append((at.done, at.planned)))
    assert seen == [(1, 2), (2, 2)]


# ---- the journal -----------------------------------------------------------------------------------------------------


def test_a_journal_has_nothing_done_twice(tmp_path: Path) -> None:
    asks: dict[str, list[dict[str, Any]]] = {"a": [{}, {"fails": True}, {}]}
    whole = plan(tmp_path, asks)
    with CampaignJournal(tmp_path / "j", whole) as journal, pytest.raises(RefsimError, match="bad-shard"):
        run(whole, Inline(), journal=journal)
    before = done(tmp_path)
    mended = type(whole)(whole.name, whole.shards, whole.rests_on, whole.ends)
    with CampaignJournal(tmp_path / "j", mended) as journal:
        assert sorted(each.record["value"] for each in journal.kept().values()) == before
        with pytest.raises(RefsimError, match="bad-shard"):
            run(mended, Inline(), journal=journal)
    assert sorted(set(done(tmp_path))) == sorted(done(tmp_path))


def test_a_finished_campaign_is_told_from_its_journal(tmp_path: Path) -> None:
    whole = plan(tmp_path, ASKS)
    standings: list[Standing] = []
    with CampaignJournal(tmp_path / "j", whole) as journal:
        first = run(whole, Inline(), journal=journal, ahead=1)
    before = done(tmp_path)
    with CampaignJournal(tmp_path / "j", whole) as journal:
        assert run(whole, Inline(), journal=journal, watch=standings.append) == first
    assert done(tmp_path) == before
    assert standings[-1].kept == standings[-1].done == 6


def test_a_journal_of_another_campaign_is_refused_by_what_differs(tmp_path: Path) -> None:
    with CampaignJournal(tmp_path / "j", plan(tmp_path, ASKS, seed="1")):
        pass
    with pytest.raises(RefsimError) as caught, CampaignJournal(tmp_path / "j", plan(tmp_path, ASKS, seed="2")):
        pass
    assert caught.value.code == "other-campaign"
    assert "other seed" in caught.value.what


def test_a_record_that_was_changed_is_not_told_as_found(tmp_path: Path) -> None:
    whole = plan(tmp_path, ASKS)
    with CampaignJournal(tmp_path / "j", whole) as journal:
        run(whole, Inline(), journal=journal)
    base = sqlite3.connect(tmp_path / "j")
    ((record,),) = base.execute("SELECT record FROM shard WHERE key = 'a/1'").fetchall()
    base.execute("UPDATE shard SET record = ? WHERE key = 'a/1'", (record.replace("{", '{"more": 1, '),))
    base.commit()
    base.close()
    with CampaignJournal(tmp_path / "j", whole) as journal, pytest.raises(RefsimError, match="bad-file"):
        run(whole, Inline(), journal=journal)


def test_a_journal_has_one_process(tmp_path: Path) -> None:
    whole = plan(tmp_path, ASKS)
    with (
        CampaignJournal(tmp_path / "j", whole),
        pytest.raises(RefsimError, match="journal-in-use"),
        CampaignJournal(tmp_path / "j", whole),
    ):
        pass


@pytest.mark.parametrize(
    "content", [b"no database at all, but longer than a header " * 9, b"SQLite format 3\0" + b"x" * 999]
)
def test_what_is_no_journal_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "j"
    file.write_bytes(content)
    with pytest.raises(RefsimError) as caught, CampaignJournal(file, plan(tmp_path, ASKS)):
        pass
    assert (caught.value.code, caught.value.kind) == ("bad-file", Kind.UNREADABLE)
    assert file.read_bytes() == content


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    base = sqlite3.connect(tmp_path / "j")
    base.execute("CREATE TABLE mine (x)")
    base.commit()
    base.close()
    with pytest.raises(RefsimError, match="bad-file"), CampaignJournal(tmp_path / "j", plan(tmp_path, ASKS)):
        pass


def test_a_folder_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RefsimError, match="cannot-write"), CampaignJournal(tmp_path / "no" / "j", plan(tmp_path, ASKS)):
        pass
    assert not (tmp_path / "no").exists()


def test_a_full_disk_ends_the_run_and_loses_no_finished_shard(tmp_path: Path) -> None:
    """The database may grow to so many pages and no further, which SQLite reports as it reports a full disk."""
    whole = plan(tmp_path, {"a": [{} for _ in range(400)]})
    with CampaignJournal(tmp_path / "j", whole) as journal:
        pages = journal._base.execute("PRAGMA page_count").fetchone()[0]
        journal._base.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(RefsimError) as caught:
            run(whole, Inline(), journal=journal, ahead=1)
        assert (caught.value.code, caught.value.kind) == ("cannot-write", Kind.MISSING)
        assert "full" in caught.value.what
    with CampaignJournal(tmp_path / "j", whole) as journal:
        kept = len(journal.kept())
        assert 0 < kept < 400
        assert len(run(whole, Inline(), journal=journal)["a"]) == 400
    assert len(done(tmp_path)) == 401  # the one that found the disk full was done again, since it did not count


# ---- processes that die ----------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_costs_its_shard_a_try_and_nobody_else_anything(tmp_path: Path) -> None:
    asks = {"a": [{"kills": str(tmp_path / "once")} if number in (1, 3) else {} for number in range(6)]}
    whole = plan(tmp_path, asks)
    standings: list[int] = []
    workers = LocalWorkers([{}, {"MARKED": "1"}])
    try:
        found = run(whole, workers, watch=lambda at: standings.append(at.lost))
    finally:
        workers.shutdown()
    assert values(found) == {"a": [f"a{number}" for number in range(6)]}
    assert sorted(done(tmp_path)) == sorted(f"a{number}" for number in range(6))
    assert standings[-1] == 1


def test_a_shard_under_which_three_workers_die_is_named(tmp_path: Path) -> None:
    workers = LocalWorkers([{}])
    try:
        with pytest.raises(RefsimError) as caught:
            run(plan(tmp_path, {"a": [{}, {"always_kills": True}]}), workers)
    finally:
        workers.shutdown(wait=False)
    assert (caught.value.code, caught.value.kind) == ("workers-lost", Kind.INCONCLUSIVE)
    assert "a/1" in caught.value.what


def test_an_executor_that_lost_it_without_blame_is_asked_again(tmp_path: Path) -> None:
    class Forgetful(Inline):
        asked = 0

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.asked += 1
            if self.asked > 5:
                return super().submit(fn, *args, **kwargs)
            future: Future[Any] = Future()
            future.set_exception(LostError("gone", blames=False))
            return future

    assert values(run(plan(tmp_path, {"a": [{}]}), Forgetful())) == {"a": ["a0"]}
