"""Failing test cases that campaigns share in a Hypothesis example database, tried again before new ones are drawn.

The database is a folder or a Redis server (`redis://host:port/db`), as in `hypothesis.database`. A value is the JSON
of a test case, so it stays readable under other strategies and other versions of Hypothesis.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from refsim.campaigns.verifying import recorded
from refsim.device import Device
from refsim.errors import Kind, RefsimError, missing_extra
from refsim.kernels import Kernel
from refsim.testing.campaign import run_part
from refsim.testing.recipes import from_json
from refsim.testing.verdicts import FAIL, PASS, Verdict

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase


def opened(name: str) -> "ExampleDatabase":
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


def tried(kernel: Kernel, device: Device, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Run every stored test case of a kernel, the first shard; remove them from the database where all agree.

    Values that are no test cases of this kernel any more are removed too. They run in the order of the stored texts.
    """
    database, key, problems = opened(ask["examples"]), _key(kernel), {}
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


def store(kernel: Kernel, name: str, verdict: Verdict) -> None:
    """Save the smallest test case of a kernel that fails; do nothing where the verdict has none that JSON can hold."""
    if verdict.status == FAIL and verdict.problem is not None:
        opened(name).save(_key(kernel), json.dumps(verdict.problem, sort_keys=True).encode())
