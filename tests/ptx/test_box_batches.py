"""Boxes that several blocks ask for by one instruction: what is found is what copies find that are started one by one."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refsim import layouts, ptx
from refsim.device.compile import compile_ptx
from refsim.errors import Kind, RefsimError
from refsim.ptx.async_ops import box_batches, engine
from refsim.ptx.memory.tensor_map import encoded

SOURCE = Path(__file__).with_name("box_batches.cu")
MISTAKES = (
    "none one-place early-write no-fence no-wait early-refill too-few no-block asked-twice below".split()  # noqa: SIM905
)
ROWS = 62  # of 64, and 32 columns: the last box reaches over the edge
SHARED_ONLY = {"no-block", "asked-twice"}


@lru_cache(maxsize=1)
def program() -> ptx.Program:
    try:
        return ptx.load(compile_ptx(SOURCE, "sm_90a").text)
    except RefsimError as error:
        if error.kind is not Kind.MISSING:
            raise
        pytest.skip(f"the kernel cannot be compiled here: {error.what}")


def told(mistake: str, policy: str, level: str, *, shares: bool) -> tuple[Any, ...]:
    """What a launch leaves and says."""
    memory, x = ptx.GlobalMemory(), np.arange(64 * 32, dtype=np.uint32)
    places = [memory.allocate(x.nbytes, name, initial=x) for name in "xy"]
    maps = [
        encoded(layouts.tensor_map("uint32", (32, ROWS), (32, 4), strides=(128,), address=place)) for place in places
    ]
    numbers = np.uint32(MISTAKES.index(mistake)), np.uint32(shares)
    checks = ptx.Checks(races=level, copies=level)
    try:
        trace = program().launch(
            "tiles", 4, 64, [*maps, *numbers], shared_bytes=1024, memory=memory, policy=policy, seed=3, checks=checks
        )
    except RefsimError as error:
        return error.code, str(error)
    said = [str(each) for group in (trace.findings, trace.warnings, trace.notes) for each in group]
    return *said, memory.read(places[1], x.nbytes).tobytes()


LATER = pytest.mark.ci("boxes that blocks share have the same mistake in every run")


@pytest.mark.parametrize(
    ("mistake", "shares"),
    [
        pytest.param(mistake, shares, marks=() if shares or mistake in ("none", "one-place") else LATER)
        for mistake in MISTAKES
        for shares in (False, True)
        if shares or mistake not in SHARED_ONLY
    ],
)
def test_copies_together_find_what_each_finds(monkeypatch: pytest.MonkeyPatch, mistake: str, shares: bool) -> None:
    begun: list[bool] = []
    together = {name: getattr(box_batches, name) for name in ("loaded", "stored")}
    for name, function in together.items():
        monkeypatch.setattr(engine, name, lambda *all, f=function: begun.append(f(*all)) or begun[-1])
    cases = [("eager", "record"), ("lazy", "error"), ("random", "error")]
    found = [told(mistake, policy, level, shares=shares) for policy, level in cases]
    if mistake == "none":
        assert all(begun), "not all were started together"
    monkeypatch.setattr(engine, "batch_of", lambda *all, **more: None)
    assert found == [told(mistake, policy, level, shares=shares) for policy, level in cases]
    assert (len(found[0]) > 1) == (mistake != "none"), found[0]
