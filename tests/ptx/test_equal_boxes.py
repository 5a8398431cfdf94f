"""One box that all threads store: the findings are those of copies that are started one by one."""

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

CODES = {
    0: set(),
    1: {"missing-proxy-fence"},
    2: {"race", "read-before-wait"},
    3: {"race", "read-before-wait"},
    4: {"race"},
}


@lru_cache(maxsize=1)
def program() -> ptx.Program:
    try:
        return ptx.load(compile_ptx(Path(__file__).with_name("equal_boxes.cu"), "sm_90a").text)
    except RefsimError as error:
        if error.kind is not Kind.MISSING:
            raise
        pytest.skip(f"the kernel cannot be compiled here: {error.what}")


def told(mistake: int, threads: int, policy: str, level: str) -> tuple[Any, ...]:
    """Return the findings of a launch, and the bytes that it leaves."""
    memory = ptx.GlobalMemory()
    place = memory.allocate(128 * 16 * 2, "y")
    map_ = encoded(layouts.tensor_map("uint16", (16, 128), (16, 32), strides=(32,), address=place))
    checks = ptx.Checks(races=level, copies=level)
    try:
        trace = program().launch(
            "tiles",
            2,
            64,
            [map_, np.int32(mistake), np.int32(threads)],
            shared_bytes=1024,
            memory=memory,
            policy=policy,
            seed=3,
            checks=checks,
        )
    except RefsimError as error:
        return error.code, str(error)
    said = [str(each) for group in (trace.findings, trace.warnings, trace.notes) for each in group]
    return *said, memory.read(place, 128 * 16 * 2).tobytes()


@pytest.mark.parametrize("mistake", CODES)
@pytest.mark.parametrize("threads", [32, 64])
def test_equal_boxes_are_found_as_boxes_one_by_one(mistake: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bool] = []
    together = box_batches.stored

    def noting(*given: Any) -> bool:
        begun.append(together(*given))
        return begun[-1]

    for policy in ("eager", "lazy"):
        for level in ("error", "record"):
            monkeypatch.setattr(engine, "stored", noting)
            found = told(mistake, threads, policy, level)
            monkeypatch.setattr(engine, "stored", lambda *_: False)
            assert found == told(mistake, threads, policy, level)
            if level == "error":
                assert isinstance(found[-1], bytes) if mistake == 0 else found[0] in CODES[mistake], found
    assert any(begun) or mistake in (1, 4)


def test_equal_boxes_are_started_together(monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[int] = []
    store = engine.CopyEngine._store
    monkeypatch.setattr(engine.CopyEngine, "_store", lambda *given: (alone.append(1), store(*given))[1])
    told(0, 64, "eager", "error")
    assert len(alone) <= 2 * 2 * 2 * 2  # two of each warp, of two warps, in two blocks, twice
