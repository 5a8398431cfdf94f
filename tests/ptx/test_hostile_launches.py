"""Arguments of a launch and of device memory that are none: one error that names them, and never a traceback."""

from typing import Any

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError

TEXT = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) { .reg .b64 %d<2>; ld.param.u64 %d1, [out]; st.global.u32 [%d1], 7; ret; }
"""


class Unequal:
    """Has no length, no number and compares with nothing."""

    def __index__(self) -> int:
        raise ValueError("no number")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no comparison")

    __hash__ = None  # type: ignore[assignment]


WRONG = [
    1.5,
    "x",
    b"1",
    [1, [2, 3]],
    np.array([1.5, 2]),
    np.zeros(3),
    {},
    object(),
    1j,
    np.datetime64("2020"),
    Unequal(),
    10**30,
]
OPTIONS = (
    "memory",
    "checks",
    "cooperative",
    "programmatic",
    "policy",
    "arithmetic",
    "watching",
    "following",
    "observer",
)


def launch(**changed: Any) -> None:
    given = {"entry": "k", "grid": 1, "block": 1, "args": [np.zeros(1, np.uint32)]} | changed
    ptx.load(TEXT).launch(**given)


@pytest.mark.parametrize("name", [*OPTIONS, "entry", "grid", "block", "cluster", "shared_bytes"])
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
def test_an_option_that_is_none_is_named(name: str, wrong: Any) -> None:
    with pytest.raises(RefsimError) as caught:
        launch(**{name: wrong})
    assert caught.value.what


@pytest.mark.parametrize("seed", [-1, 1.0, True, "1", np.array([1]), None])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(RefsimError, match="seed="):
        launch(seed=seed)


def test_narrow_numbers_are_whole_numbers_too() -> None:
    launch(seed=np.int8(100), shared_bytes=np.int8(100), policy="random")


@pytest.mark.parametrize("args", [5, None, "xy", b"12345678", {1}, np.array(2)])
def test_arguments_are_a_list(args: Any) -> None:
    with pytest.raises(RefsimError, match="arguments are a list"):
        launch(args=args)


@pytest.mark.parametrize("wrong", [5, 1.5, [1], {}, "sm_1", "", Unequal()])
def test_a_target_has_a_name(wrong: Any) -> None:
    with pytest.raises(RefsimError, match="unknown-target"):
        ptx.load(TEXT, target=wrong)


@pytest.mark.parametrize(
    ("field", "wrong", "code"),
    [
        *(("races", wrong, "unknown-check") for wrong in (5, None, [1], np.array(["error", "off"]), Unequal())),
        *(("banks", wrong, "unknown-check") for wrong in (1, "yes", np.array([1, 2]))),
        *(("off", wrong, "unknown-check") for wrong in (5, "race", [5], [[1]], {"race"}, None)),
        *(("seconds", wrong, "out-of-range") for wrong in ("1", True, 1j, float("nan"), -1.0, None, np.zeros(2))),
    ],
)
def test_checks_are_levels_names_and_seconds(field: str, wrong: Any, code: str) -> None:
    with pytest.raises(RefsimError) as caught:
        ptx.Checks(**{field: wrong})
    assert caught.value.code == code


@pytest.mark.parametrize(
    "changed",
    [
        *({"size": wrong} for wrong in (-1, 1.5, "1", True, None, np.zeros(2))),
        *({"name": wrong} for wrong in (5, None, [1])),
        *({"align": wrong} for wrong in (0, -4, 1.0)),
        {"offset": -1},
        *({"initial": wrong} for wrong in (bytes(17), np.zeros(3), [[1], [2, 3]], {}, np.array([object()]))),
    ],
)
def test_a_buffer_has_a_name_a_size_and_no_more_contents(changed: dict[str, Any]) -> None:
    """Contents beyond the size would lie in the buffer behind it."""
    memory = ptx.GlobalMemory()
    with pytest.raises(RefsimError, match=r"bad-buffer|not-an-array"):
        memory.allocate(**{"size": 16, "name": "x"} | changed)
    assert memory.allocate(np.int8(100), "y", initial=bytes(100)) % 256 == 0


@pytest.mark.parametrize("beyond", [False, True])
def test_a_prefetch_of_megabytes_is_looked_at_to_its_end(beyond: bool) -> None:
    text = TEXT.replace(
        "st.global.u32 [%d1], 7;", f"cp.async.bulk.prefetch.L2.global [%d1], {(3 << 20) + 16 * beyond};"
    )
    memory = ptx.GlobalMemory()
    address = np.uint64(memory.allocate(3 << 20, "x", initial=b"1"))
    if not beyond:
        ptx.load(text).launch("k", 1, 1, [address], memory=memory)
        return
    with pytest.raises(RefsimError, match="out-of-bounds"):
        ptx.load(text).launch("k", 1, 1, [address], memory=memory)
