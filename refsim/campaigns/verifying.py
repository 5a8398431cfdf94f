"""Plan `refsim verify`: each kernel's corpus and generated test cases in shards, and the verdict of all together.

With a shared database, test cases that failed are tried again before new ones are drawn: a folder, or a Redis server
(`redis://host:port/db`), as in `hypothesis.database`.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refsim.bringup.state import source_hash
from refsim.campaigns.shards import CampaignPlan, Shard
from refsim.device import Device
from refsim.device import open as open_device
from refsim.device.cache import cache_directory
from refsim.device.kernel_sources import TEXT_NAME, source_files
from refsim.errors import Kind, RefsimError, missing_extra
from refsim.files.access import open_for_reading
from refsim.kernel_code import code_of
from refsim.kernels import Kernel
from refsim.ptx.findings.table import Waiver
from refsim.silicon.witness import SiliconWitness
from refsim.testing.campaign import Progress, checked_budget, completed, run_part
from refsim.testing.decisions import badness
from refsim.testing.kernel_files import imported_files, kernel_named
from refsim.testing.oracle_checks import NO_SLACK, Slack
from refsim.testing.recipes import from_json
from refsim.testing.replay import write_case
from refsim.testing.verdicts import ERROR, FAIL, GRAVITY, NOT_RUN, PASS, TIMEOUT, UNSUPPORTED, Recomputed, Verdict

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

SHARD_CASES = 100
"""Generated cases of a shard: the profile quick is one shard, which draws the cases of an undivided campaign."""
ENDING = (FAIL, TIMEOUT, ERROR)
_WORK = "refsim.campaigns.verifying:part"


@dataclass(frozen=True)
class Request:
    """The options of `refsim verify` that decide a verdict; `examples` names a shared database of failures."""

    device: str
    target: str | None = None
    without: tuple[str, ...] = ()
    arithmetic: str = "silicon"
    profile: str = "quick"
    cases: int | None = None
    seed: int | None = None
    suspect_seconds: float | None = None
    shard_cases: int = SHARD_CASES
    examples: str = ""
    fail_fast: bool = False


def plan_of(kernels: Sequence[Kernel], request: Request) -> CampaignPlan:
    """Return the shards of a campaign over kernels that files declare.

    Shard 0 of a kernel has its corpus and its first cases, drawn as in an undivided campaign; later shards draw from
    seeds of their own. With `examples` one more shard comes first, which tries earlier failures.
    Raises RefsimError `no-kernel-file` for a kernel that other processes cannot find.
    """
    if request.examples:
        opened_database(request.examples)  # an error of the request, not of each kernel
    shards: list[Shard] = []
    for kernel in kernels:
        if kernel.declared_in is None:
            raise RefsimError(
                "no-kernel-file",
                f"kernel {kernel.name} was declared in no file",
                rule="each worker reads the file that declares a kernel",
                help="declare it in a file with KERNELS, or run the campaign undivided: run_campaign",
            )
        asks: list[dict[str, Any]] = [{"tries": "examples"}] if request.examples else []
        for ask in [*asks, *_parts(kernel.name, request)]:
            facts = _common(kernel, request) | ask
            shards.append(Shard(kernel.name, len(shards), _WORK, json.dumps(facts, sort_keys=True)))
    shards = [replace(each, number=each.number - _first(shards, each.series)) for each in shards]
    own_files = sorted({str(file): _hash(file) for file in imported_files(())}.items())
    rests_on = {
        "refsim": source_hash(),
        "kernel files": hashlib.sha256(repr(own_files).encode()).hexdigest(),
        "device": f"{request.device} {request.target or ''}".strip(),
        "profile": request.profile,
        "cases": str(request.cases),
        "seed": str(request.seed),
        "cases of a shard": str(request.shard_cases),
        "fail fast": str(request.fail_fast),
    }
    return CampaignPlan(
        "verify",
        tuple(shards),
        rests_on,
        ends=lambda record: record["status"] in ENDING or (record["status"] == UNSUPPORTED and not record["unfit"]),
        stops=lambda record: request.fail_fast and record["status"] in (FAIL, ERROR),
        failed=lambda shard, error: recorded(Verdict.of_error(shard.series, error, request.profile)),
    )


def _first(shards: Sequence[Shard], series: str) -> int:
    return next(each.number for each in shards if each.series == series)


def _parts(name: str, request: Request) -> Iterator[dict[str, Any]]:
    """Yield cases, seed and corpus of each part; a seed depends on the kernel, the campaign's seed and the number."""
    budget, size = checked_budget(request.profile, request.cases, request.seed), request.shard_cases
    planned = budget.cases if request.cases is None else request.cases
    for number in range(max(1, -(-planned // size))):
        drawn = hashlib.sha256(f"{name} {request.seed} {number}".encode()).digest()
        seed = request.seed if number == 0 else int.from_bytes(drawn[:4], "little")
        yield {"cases": min(size, planned - number * size), "seed": seed, "corpus": number == 0}


def _common(kernel: Kernel, request: Request) -> dict[str, Any]:
    """Return the fields that every shard of a kernel shares."""
    said = asdict(request)
    kept = ("device", "target", "without", "arithmetic", "profile", "suspect_seconds", "examples")
    return {key: said[key] for key in kept} | {
        "kernel": kernel.name,
        "file": str(kernel.declared_in),
        "sources": _sources(kernel),
        "refsim": source_hash(),
    }


def _sources(kernel: Kernel) -> str:
    """Return the SHA-256 of the file that declares a kernel, and of its CUDA or PTX with all headers.

    A file that cannot be read counts as its error, which the kernel's shards then meet.
    """
    try:
        files = [*([kernel.declared_in] if kernel.declared_in else []), *source_files(kernel.code)]
        facts = [(file.name, _hash(file)) for file in files]
    except RefsimError as error:
        facts = [(error.code, error.what)]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _hash(file: Path) -> str:
    with open_for_reading(file) as reader:  # the file may have been removed since it was loaded
        return hashlib.sha256(reader.take(reader.left, "the file")).hexdigest()


def quiet_hypothesis() -> None:
    """Move the notes that Hypothesis writes without a database from the working directory to the cache."""
    from hypothesis.configuration import set_hypothesis_home_dir

    set_hypothesis_home_dir(cache_directory() / "hypothesis")


# ---- in a worker -----------------------------------------------------------------------------------------------------

_watching: Callable[[Progress], None] | None = None


@contextmanager
def watched(report: Callable[[Progress], None] | None) -> Iterator[None]:
    """Report the progress within shards that this process does itself."""
    global _watching  # noqa: PLW0603 (a shard is a function of its JSON, which cannot hold a callback)
    before, _watching = _watching, report
    try:
        yield
    finally:
        _watching = before


def part(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Do one shard and return the JSON object of its verdict, with `slack` for what its bounds leave open."""
    quiet_hypothesis()
    kernel = kernel_named(ask["kernel"], [ask["file"]])
    if ask["refsim"] != source_hash() or ask["sources"] != _sources(kernel):
        what = "refsim" if ask["refsim"] != source_hash() else f"kernel {kernel.name}"
        raise RefsimError(
            "other-sources",
            f"this worker has another version of {what} than the campaign",
            where=ask["file"],
            rule="all shards of a campaign are of the same sources",
            help="give every worker the same installation and the same files, then go on",
            kind=Kind.MISSING,
        )
    checks = tuple(ask["without"])
    device = _opened(ask["device"], ask["target"], without=checks, arithmetic=ask["arithmetic"])
    if ask.get("tries") == "examples":
        return _tried(kernel, device, ask)
    verdict, slack = run_part(
        kernel if ask["corpus"] else replace(kernel, corpus=()),
        device,
        profile=ask["profile"],
        cases=ask["cases"],
        seed=ask["seed"],
        suspect_seconds=ask["suspect_seconds"],
        on_progress=_watching,
    )
    if ask["examples"]:
        _store(kernel, ask["examples"], verdict)
    return recorded(verdict, slack)


def recorded(verdict: Verdict, slack: Slack = NO_SLACK) -> dict[str, Any]:
    """Return a verdict as the record of a shard."""
    return verdict.to_json() | {"slack": asdict(slack)}


_opened = lru_cache(maxsize=4)(open_device)


# ---- failing test cases that campaigns share in an example database of Hypothesis, as the JSON of a test case -----------


def opened_database(name: str) -> "ExampleDatabase":
    """Return the database of that name.

    Raises RefsimError: `missing-extra` (exit 4) for Redis without its package; `bad-campaign` for a server that does
    not answer (exit 4), and for another scheme or a malformed address (exit 2).
    """
    from hypothesis.database import DirectoryBasedExampleDatabase

    scheme, mark, _ = name.partition("://")
    if not mark:
        return DirectoryBasedExampleDatabase(name)
    if scheme not in ("redis", "rediss", "unix"):
        raise RefsimError(
            "bad-campaign", f"no database is reached by {scheme}://", help="a folder, or redis://host:port/0"
        )
    try:
        import redis
        from hypothesis.extra.redis import RedisExampleDatabase
    except ImportError as problem:
        raise missing_extra("a database on Redis needs redis", "pip install redis") from problem
    try:
        server = redis.Redis.from_url(name)
        server.ping()
    except (ValueError, redis.RedisError) as problem:
        kind = Kind.USAGE if isinstance(problem, ValueError) else Kind.MISSING
        help = "a folder, or redis://host:port/0 of a server that runs"
        raise RefsimError("bad-campaign", f"no database answers: {problem}", name, help=help, kind=kind) from problem
    return RedisExampleDatabase(server)


def _key(kernel: Kernel) -> bytes:
    """Return the database key of a kernel."""
    return f"refsim verify {kernel.name}".encode()


def _tried(kernel: Kernel, device: Device, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Run every stored test case of a kernel, the first shard; remove them from the database where all agree.

    Values that are no test cases of this kernel any more are removed too. They run in the order of the stored texts.
    """
    database, key, problems = opened_database(ask["examples"]), _key(kernel), {}
    for stored in sorted(database.fetch(key)):
        try:
            problems[stored] = from_json(kernel.recipe, json.loads(stored), where="an example")
        except (RefsimError, ValueError):
            database.delete(key, stored)
    if not problems:
        return recorded(Verdict(kernel.name, PASS, {}, ask["profile"], promise=kernel.contract))
    found, slack = run_part(
        replace(kernel, corpus=tuple(problems.values())),
        device,
        profile=ask["profile"],
        cases=0,
        seed=None,
        suspect_seconds=ask["suspect_seconds"],
    )
    if found.status == PASS:
        for stored in problems:
            database.delete(key, stored)
    return recorded(found, slack)


def _store(kernel: Kernel, name: str, verdict: Verdict) -> None:
    """Save the smallest test case of a kernel that fails; do nothing where the verdict has none that JSON can hold."""
    if verdict.status == FAIL and verdict.problem is not None:
        opened_database(name).save(_key(kernel), json.dumps(verdict.problem, sort_keys=True).encode())


# ---- the whole -------------------------------------------------------------------------------------------------------


def verdict_of(
    kernel: Kernel, records: Sequence[Mapping[str, Any]], request: Request, failures: Path | None
) -> Verdict:
    """Return the verdict of a kernel's shards: counts add up, and the worst shard (the first of several) decides.

    The failing case is written to `failures` here, since a worker may run on another machine. Without any record the
    kernel was not run.
    The verdict is an error where the shards together compared nothing, or only with bounds that every number meets.
    """
    if not records:
        return Verdict(kernel.name, NOT_RUN, {}, request.profile, promise=kernel.contract)
    parts = [Verdict.from_json({key: each[key] for key in each if key != "slack"}) for each in records]
    slack = reduce(Slack.__add__, (Slack(**each["slack"]) for each in records), NO_SLACK)
    gravest = max(parts, key=lambda each: GRAVITY.index(each.status))
    unfit = tuple(dict.fromkeys(entry for each in parts for entry in each.unfit))
    worst = [each.worst for each in parts if each.worst is not None]
    counts: dict[str, tuple[int, int]] = {}
    waived: dict[str, str] = {}
    for each in parts:
        waived |= {name: waived.get(name) or what for name, what in each.waived.items()}
        for name, (of, bad) in each.counts.items():
            before = counts.get(name, (0, 0))
            counts[name] = before[0] + of, before[1] + bad
    whole = replace(
        gravest,
        device=next((each.device for each in parts if each.device), {}),  # a part without stored test cases opened none
        seed=request.seed,
        cases=sum(each.cases for each in parts),
        elements=sum(each.elements for each in parts),
        seconds=sum(each.seconds for each in parts),
        differing=sum(each.differing for each in parts),
        worst=max(worst, key=badness) if worst else None,
        counts=counts,
        notes=tuple(dict.fromkeys([*(note for each in parts for note in each.notes), *_devices(parts)])),
        silicon=reduce(SiliconWitness.joined, (each.silicon for each in parts)),
        recomputed=reduce(_both, (each.recomputed for each in parts)),
        waived=waived,
        unfit=unfit,
        promise=kernel.contract,
    )
    try:
        return completed(_with_case(kernel, whole, failures), slack)
    except RefsimError as error:
        return replace(whole, status=ERROR, finding=str(error), error=error)


def with_unused(found: Sequence[tuple[Kernel | None, Verdict]], without: Sequence[str]) -> list[Verdict]:
    """Return the verdicts of a run; a kernel fails for a waiver if no kernel that shares the line has its finding.

    Kernels share a line if it is of the same file or text. A waiver of `without`, and of a file that its kernel has
    not, needs a finding in any kernel. A kernel that ended without a pass leaves all its waivers undecided.
    """
    waived = [(verdict, name, _home(kernel, name)) for kernel, verdict in found for name in verdict.waived]
    used = {(name, at) for verdict, name, home in waived if name not in verdict.unused for at in (home, None)}
    known = {name for _, name, _ in waived}
    lost = [name for name in without if "@" in name and name not in known]
    made = []
    for kernel, verdict in found:
        homes = {name: None if name in without else _home(kernel, name) for name in verdict.unused}
        made.append(verdict.with_unused([*(name for name, home in homes.items() if (name, home) not in used), *lost]))
    return made


def _home(kernel: Kernel | None, name: str) -> Path | str | None:
    """Return the text, else the file, of a kernel that has a waiver's line; None if the waiver names no file of it."""
    waiver, code = Waiver.of(name), code_of(kernel.code if kernel else None)
    files = [file for file in source_files(code) if waiver.is_of_ptx or file.name == waiver.file]
    text = code.ptx or code.source if waiver.is_of_ptx else code.source if waiver.file == TEXT_NAME else None
    return next(iter(files), None) if text is None else text


def _with_case(kernel: Kernel, verdict: Verdict, failures: Path | None) -> Verdict:
    """Return the verdict with the replay case of its failing test case, as an undivided campaign writes it."""
    if verdict.status not in (FAIL, TIMEOUT) or verdict.problem is None or failures is None:
        return verdict
    try:
        problem = from_json(kernel.recipe, verdict.problem)
        return replace(
            verdict, replay=str(write_case(failures, kernel, problem, dict(verdict.device), verdict.finding))
        )
    except (OSError, ValueError) as error:
        return replace(verdict, notes=(*verdict.notes, f"no replay case in {failures}: {error}"))


def _both(a: Recomputed, b: Recomputed) -> Recomputed:
    judges, is_declared = tuple(dict.fromkeys((*a.judges, *b.judges))), a.is_declared or b.is_declared
    return Recomputed(a.outputs + b.outputs, a.differing + b.differing, a.first or b.first, is_declared, judges)


def _devices(parts: Sequence[Verdict]) -> Iterator[str]:
    """Yield a note for each fact that differs between the devices of the shards."""
    names = dict.fromkeys(key for each in parts for key in each.device)
    for name in names:
        values = list(dict.fromkeys(str(each.device.get(name, "nothing")) for each in parts if each.device))
        if len(values) > 1:
            yield f"its shards ran on devices that differ: {name} is {' or '.join(values)}"
