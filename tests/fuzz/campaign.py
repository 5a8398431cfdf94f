"""python -m tests.fuzz files --count 400000 --workers 16; python -m tests.fuzz lines --count 20000.

Files of every kind that refsim reads, and command lines, damaged at random and the same for the same --seed. None may raise
anything but a RefsimError, leave with 70, take longer than 10 s or 1 GB more. A finding names the command that repeats it.
"""

import argparse
import faulthandler
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from itertools import islice
from pathlib import Path

from tests.fuzz import lines, mutations, readers, watched
from tests.fuzz.watched import Finding

CHUNK = 200
HUNG_SECONDS = 600


def fuzz_files(seed: int, first: int, count: int, only: str = "") -> list[Finding]:
    """Attempts `first` .. `first + count - 1` of every reader, or of one."""
    found = []
    with tempfile.TemporaryDirectory(dir=_memory()) as name, watched.limits():
        folder = Path(name)
        (folder / "recorded").mkdir()
        (folder / "streams").mkdir()
        (folder / "refsim" / "ptx").mkdir(parents=True)
        readers.set_up(folder)
        for reader in readers.READERS:
            if only in ("", reader.name):
                found += _of_reader(reader, folder, seed, range(first, first + count))
    return found


def _of_reader(reader: readers.Reader, folder: Path, seed: int, indices: range) -> Iterator[Finding]:
    with tempfile.TemporaryDirectory() as scratch:
        seeds = reader.seeds(Path(scratch))
    path = folder / reader.name
    for index in indices:
        path.write_bytes(mutations.mutated(random.Random(f"{seed}/{reader.name}/{index}"), seeds))
        finding = watched.attempt(reader.name, index, partial(reader.read, path))
        if finding:
            yield finding
    path.unlink(missing_ok=True)


def fuzz_lines(seed: int, first: int, count: int, only: str = "") -> list[Finding]:
    """Command lines `first` .. `first + count - 1`."""
    found = []
    with tempfile.TemporaryDirectory(dir=_memory()) as name:
        folder = Path(name) / "here"
        folder.mkdir()
        lines.prepare(folder)
        for warm in (["simulate", "k.cu", "k"], ["verify", "--device", "sim"], ["bringup", "--device", "sim"]):
            lines.run(warm, b"")  # what these load for good is no answer's memory
        files = lines.contents(folder)
        with watched.limits():
            for index in range(first, first + count):
                draw = random.Random(f"{seed}/lines/{index}")
                words, stdin = lines.drawn(draw), draw.choice((b"", b"0x7e 1\n", b"\xff\x00", b"nan " * 3000))
                finding = watched.attempt(f"refsim {words!r}"[:700], index, partial(lines.run, words, stdin))
                found += [finding] if finding else []
                lines.refill(folder, files)
    return found


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


KINDS: dict[str, Callable[..., list[Finding]]] = {"files": fuzz_files, "lines": fuzz_lines}


def _chunk(kind: str, seed: int, only: str, first: int, count: int) -> tuple[int, list[Finding]]:
    faulthandler.dump_traceback_later(
        HUNG_SECONDS, exit=True
    )  # what no alarm interrupts ends the worker, and says where
    found = KINDS[kind](seed, first, count, only)
    faulthandler.cancel_dump_traceback_later()
    return count * (len(readers.READERS) if kind == "files" and not only else 1), found


def main() -> int:
    """1 where anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, default=20_000, help="files or command lines, in all")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", default="", help="one reader, by the name of its file")
    parser.add_argument("--at", type=int, help="one attempt again")
    asked = parser.parse_args()
    per = 1 if asked.kind == "lines" or asked.only else len(readers.READERS)
    each = -(-asked.count // per)
    spans = [(asked.at, 1)] if asked.at is not None else [(at, min(CHUNK, each - at)) for at in range(0, each, CHUNK)]
    started, done, seen = time.monotonic(), 0, 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.workers, mp_context=context) as pool:
        begun = iter(spans)
        under_way: set[Future[tuple[int, list[Finding]]]] = set()
        while True:
            room = asked.workers - len(under_way) if time.monotonic() - started <= asked.seconds else 0
            for span in islice(begun, room):
                under_way.add(pool.submit(_chunk, asked.kind, asked.seed, asked.only, *span))
            if not under_way:
                break
            ended, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for part in ended:
                count, found = part.result()
                done, seen = done + count, seen + len(found)
                for finding in found:
                    only = "" if asked.kind == "lines" else f" --only {finding.subject}"
                    print(f"{finding.subject} {finding.index}: {finding.what}")
                    print(
                        f"  again: python -m tests.fuzz {asked.kind}{only} --seed {asked.seed} --at {finding.index}",
                        flush=True,
                    )
    took = time.monotonic() - started
    print(f"{done} {asked.kind}, seed {asked.seed}: {seen} findings; {took:.0f} s, {done / took:.0f} a second")
    return 1 if seen else 0
