"""Every JSON key of verify, explain-diff, order, blame and simulate --events is in conformance/reports/json_keys.md."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refsim.causes import DiffExplanation
from refsim.causes.explanation import FORMER_KEYS
from tests.cli.help_files import write

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "conformance/reports/json_keys.md").read_text("utf-8")
DOCUMENTED = {name for line in PAGE.splitlines() for name in re.findall(r"`([\w-]+)`", line)}
NAMES = {"counts", "problem", "device", "lines", "recomputed"}
"""Keys whose values have keys of a kernel, a test case or a source file."""
LINES = {
    "verify": f"verify row_offset --kernels {ROOT}/gpu/exhibits/bindings.py --device sim --suspects 0",
    "cause": "explain-diff train.npy serve.npy -t bf16 --a a.npy --b b.npy --a-scale sa.npy --b-scale sb.npy --at 0,0",
    "outputs": "explain-diff got.npy want.npy -t bf16",
    "order": "order served.py:one_chain --n 8 --k 32 --m 1,2 --against served.py:four_parts",
    "events": "simulate turn.ptx turn --block 64 --arg zeros:f32:64 --no-banks --events",
    "blame": "blame turn.ptx turn --block 64 --arg zeros:f32:64 --device sim",
}


def keys_of(found: Any, *, free: bool = False) -> Iterator[str]:
    """Every key of a document; the keys below one of NAMES are names of the user's."""
    if isinstance(found, list):
        for each in found:
            yield from keys_of(each)
    elif isinstance(found, dict):
        for key, value in found.items():
            if not free:
                yield key
            yield from () if key in NAMES and key != "recomputed" else keys_of(value, free=key in NAMES)


def test_the_keys_of_an_explanation_are_documented() -> None:
    """Every field, whether the answer of a test has it or not."""
    record = DiffExplanation("equal", 0, 1, 1).to_json()
    assert set(record) <= DOCUMENTED
    for former, key in FORMER_KEYS.items():
        assert record[former] == record[key]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", LINES)
def test_every_key_is_documented(name: str, refsim) -> None:
    write(f"refsim {LINES[name]}" if "explain-diff" in LINES[name] else "")
    run = refsim(*shlex.split(LINES[name]), "--as", "json")
    found = json.loads(run.out)
    own = {"row_offset"} if name == "verify" else set()
    assert set(keys_of(found)) - DOCUMENTED - own == set()


def test_a_key_that_no_table_has_is_found() -> None:
    assert set(keys_of({"verdicts": [{"statuz": 1}], "counts": {"y": {"elements": 1}}})) - DOCUMENTED == {"statuz"}
