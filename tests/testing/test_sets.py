"""Kernels whose atomics come in any order: right ones pass without a finding, wrong ones fail, under every schedule."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import refsim
from refsim.errors import RefsimError
from refsim.testing import Bounded, Kernel, Promise, Unordered, explain_problem, laws, replay_case, run_campaign

SOURCE = r"""
extern "C" __global__ void claim(const unsigned* keys, const unsigned* starts, unsigned* cursor, unsigned* places,
                                 float* weights, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned key = keys[i];
#ifdef RACY
  unsigned at = starts[key] + cursor[key]++;
#else
  unsigned at = starts[key] + atomicAdd(cursor + key, 1);
#endif
#ifdef WRONG_VALUE
  places[at] = key == 1 ? i ^ 1 : i;
#elif defined(OTHER_GROUP)
  places[at] = i == n - 1 ? 0 : i == 0 ? n - 1 : i;
#else
  places[at] = i;
#endif
#ifdef UNTIED
  unsigned end = starts[key + 1] - 1;
  weights[end - (at - starts[key])] = i * 0.5f;
#else
  weights[at] = i * 0.5f;
#endif
}
extern "C" __global__ void rows(const unsigned* places, const unsigned* x, unsigned* y, unsigned n) {
  unsigned i = blockIdx.x, j = threadIdx.x;
#ifdef TORN
  y[i * 4 + j] = x[places[i] * 4 + (j ^ (places[i] & 1))];
#else
  y[i * 4 + j] = x[places[i] * 4 + j];
#endif
}
extern "C" __global__ void back(const unsigned* places, unsigned* y, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef FIRST_COME
  if (i < n) y[i] = places[i];
#else
  if (i < n) y[places[i]] = 3 * places[i];
#endif
}
extern "C" __global__ void smallest(unsigned* taken, unsigned* y) {   // each row keeps its even numbers, in any order
  unsigned value = (threadIdx.x + blockIdx.x) & 31;
  if (value % 2 == 0) y[blockIdx.x * 16 + atomicAdd(taken + blockIdx.x, 1)] = value;
}
extern "C" __global__ void last(unsigned* y) { atomicExch(y, threadIdx.x); }
"""


@dataclass(frozen=True)
class Tokens:
    n: int = 40
    groups: int = 4
    seed: int = 0

    def keys(self) -> np.ndarray:
        return np.random.default_rng(self.seed).integers(0, self.groups, self.n).astype(np.uint32)

    def starts(self) -> np.ndarray:
        counts = np.bincount(self.keys(), minlength=self.groups)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)

    def order(self) -> np.ndarray:
        return np.argsort(self.keys(), kind="stable").astype(np.uint32)

    def x(self) -> np.ndarray:
        return np.random.default_rng(self.seed).integers(0, 1 << 30, (self.n, 4)).astype(np.uint32)


PROBLEMS = st.builds(Tokens, st.integers(1, 80), st.integers(1, 6), st.integers(0, 9))
CORPUS = (Tokens(), Tokens(1, 1), Tokens(70, 2))


def claimed(launcher: Any, case: Tokens) -> tuple[Any, Any]:
    keys, starts = launcher.upload(case.keys(), name="keys"), launcher.upload(case.starts(), name="starts")
    cursor = launcher.upload(np.zeros(case.groups, np.uint32), name="cursor", writable=True)
    places, weights = (launcher.output(case.n, kind, name=str(kind.__name__)) for kind in (np.uint32, np.float32))
    launcher.launch("claim", -(-case.n // 32), 32, [keys, starts, cursor, places, weights, np.uint32(case.n)])
    return places, weights


def run_places(launcher: Any, case: Tokens) -> dict[str, np.ndarray]:
    places, weights = claimed(launcher, case)
    return {"places": launcher.read(places), "weights": launcher.read(weights).view(np.uint32)}


def oracle_places(case: Tokens, together: str = "slot", groups: bool = True) -> dict[str, Any]:
    values = {"places": case.order(), "weights": (case.order() * 0.5).astype(np.float32).view(np.uint32)}
    starts = case.starts() if groups else None
    return {name: Unordered(value, groups=starts, together=together) for name, value in values.items()}


def oracle_plain(case: Tokens) -> dict[str, Any]:
    return {name: each.value for name, each in oracle_places(case).items()}


def run_rows(launcher: Any, case: Tokens) -> dict[str, np.ndarray]:
    places, _ = claimed(launcher, case)
    x, y = launcher.upload(case.x(), name="x"), launcher.output(case.n * 4, np.uint32, name="y")
    launcher.launch("rows", case.n, 4, [places, x, y, np.uint32(case.n)])
    return {"y": launcher.read(y).reshape(case.n, 4)}


def run_back(launcher: Any, case: Tokens) -> dict[str, np.ndarray]:
    places, _ = claimed(launcher, case)
    y = launcher.output(case.n, np.uint32, name="y")
    launcher.launch("back", -(-case.n // 32), 32, [places, y, np.uint32(case.n)])
    return {"y": launcher.read(y)}


def run_smallest(launcher: Any, case: Tokens) -> dict[str, np.ndarray]:
    taken = launcher.upload(np.zeros(3, np.uint32), name="taken", writable=True)
    y = launcher.output(48, np.uint32, name="y")
    launcher.launch("smallest", 3, 32, [taken, y])
    return {"y": launcher.read(y).reshape(3, 16)}


def run_last(launcher: Any, case: Tokens) -> dict[str, np.ndarray]:
    y = launcher.output(1, np.uint32, name="y")
    launcher.launch("last", 1, 256, [y])
    return {"y": launcher.read(y)}


def oracle_last(case: Tokens) -> dict[str, Any]:
    return {"y": Unordered(np.full(1, 255, np.uint32))}


def kernel(run: Callable[..., Any], oracle: Callable[..., Any], *defines: str, **fields: Any) -> Kernel:
    outputs = {"places": "", "weights": "f32"} if run is run_places else {"y": ""}
    given: dict[str, Any] = {"promise": Promise.SET(), "corpus": CORPUS, "defines": dict.fromkeys(defines, 1)} | fields
    return Kernel("sets", oracle, PROBLEMS, run, outputs, Tokens, source=SOURCE, **given)


def verdict(made: Kernel, **options: Any) -> Any:
    return run_campaign(made, refsim.device.open("sim"), cases=4, suspect_seconds=0, **options)


def oracle_rows(case: Tokens) -> dict[str, Any]:
    return {"y": Unordered(case.x()[case.order()], groups=case.starts())}


def oracle_back(case: Tokens) -> dict[str, Any]:
    return {"y": np.arange(case.n, dtype=np.uint32) * np.uint32(3)}


EVEN = np.tile(np.arange(0, 32, 2, dtype=np.uint32), (3, 1))
RIGHT = {
    "groups": kernel(run_places, oracle_places),
    "two sets": kernel(run_places, lambda case: oracle_places(case, "")),
    "one set": kernel(run_places, lambda case: oracle_places(case, groups=False)),
    "rows": kernel(run_rows, oracle_rows),
    "rows by the promise": kernel(run_rows, lambda case: {"y": case.x()}, promise=Promise.SET(0)),
    "each row": kernel(run_smallest, lambda case: {"y": EVEN}, promise=Promise.SET(axis=1)),
    "scratch": kernel(run_back, oracle_back, promise=Promise.BITWISE, any_order=("claim",)),
    "untied": kernel(run_places, lambda case: oracle_places(case, ""), "UNTIED"),
}
WRONG = {
    "wrong value": (kernel(run_places, oracle_places, "WRONG_VALUE"), "missing "),
    "other group": (kernel(run_places, lambda case: oracle_places(case, ""), "OTHER_GROUP"), "; extra "),
    "untied": (kernel(run_places, oracle_places, "UNTIED"), "missing "),
    "race": (kernel(run_places, oracle_places, "RACY"), "[race]"),
    "torn rows": (kernel(run_rows, oracle_rows, "TORN"), "missing [1]; extra [1]"),
    "whole rows": (kernel(run_smallest, lambda case: {"y": EVEN}, promise=Promise.SET(0)), "missing "),
    "last one wins": (kernel(run_last, oracle_last), "missing 255; extra 223"),
    "no contract": (kernel(run_places, oracle_plain, promise=Promise.BITWISE), "[schedule-dependent]"),
    "scratch": (kernel(run_back, oracle_back, promise=Promise.BITWISE), "[schedule-dependent]"),
    "scratch that shows": (
        kernel(run_back, lambda case: {"y": case.order()}, "FIRST_COME", promise=Promise.BITWISE, any_order=("claim",)),
        "differ",
    ),
    "another entry": (
        kernel(run_back, oracle_back, promise=Promise.BITWISE, any_order=("back",)),
        "[schedule-dependent]",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_passes_without_a_finding(name):
    found = verdict(RIGHT[name])
    assert (found.status, found.finding, found.notes) == ("pass", "", ())


def test_a_verdict_has_the_promise_and_the_entries_whose_order_is_free():
    assert verdict(RIGHT["scratch"]).promise == "bitwise; atomics of claim in any order"
    made = replace(RIGHT["scratch"], any_order=("*",), corpus=(Tokens(),))
    assert verdict(made).promise == "bitwise; atomics of all entries in any order"
    assert verdict(replace(RIGHT["rows"], corpus=(Tokens(),))).promise == str(Promise.SET())


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_fails_and_says_what_differs(name):
    made, text = WRONG[name]
    found = verdict(made)
    assert found.status == "fail"
    assert text in found.finding


def test_a_failure_shrinks_replays_and_is_explained(tmp_path):
    (tmp_path / "kernels.py").write_text("")
    made = replace(WRONG["wrong value"][0], declared_in=tmp_path / "kernels.py")
    device = refsim.device.open("sim")
    found = verdict(made, failures_dir=tmp_path)
    assert (found.problem, found.counts["weights"][1]) == ({"n": 1, "groups": 2}, 0)
    again = replay_case(found.replay, device, made, suspect_seconds=0)
    assert (again.status, again.mismatch.patterns) == ("fail", found.mismatch.patterns)
    said = {"i ^ 1 in group 1": run_mistaken}
    explained = explain_problem(replace(made, suspects=said), Tokens(), device, seconds=5)
    assert explained["places"].outcome.value == "explained"
    assert explained["places"].differing == int((Tokens().keys() == 1).sum())
    with pytest.raises(AssertionError, match="missing"):
        laws.agrees_with_oracle(made, Tokens(), device)


def run_mistaken(case: Tokens) -> dict[str, np.ndarray]:
    order = case.order()
    return {"places": np.where(case.keys()[order] == 1, order ^ 1, order)}


def test_every_schedule_is_compared_though_the_first_agrees():
    eager = refsim.device.open("sim:eager")
    assert run_campaign(kernel(run_last, oracle_last), eager, cases=0).status == "pass"
    assert verdict(kernel(run_last, oracle_last)).status == "fail"


@pytest.mark.parametrize(
    ("oracle", "fields", "code"),
    [
        (oracle_places, {"promise": Promise.BITWISE}, "wrong-output"),
        (lambda case: {"places": case.order(), "weights": case.order()}, {}, "wrong-output"),
        (lambda case: {"places": case.order()[1:], "weights": case.order()}, {"promise": Promise.SET(0)}, "bad-shape"),
        (lambda case: {"places": case.order(), "weights": case.order()}, {"promise": Promise.SET(1)}, "bad-promise"),
        (
            lambda case: {"places": Unordered(case.order(), together="a"), "weights": Bounded(case.order(), 1.0)},
            {},
            "wrong-output",
        ),
        (
            lambda case: {
                "places": Unordered(case.order(), together="a"),
                "weights": Unordered(case.order(), groups=[0, 1, case.n], together="a"),
            },
            {},
            "wrong-output",
        ),
        (oracle_places, {"any_order": ("clain",)}, "unknown-entry"),
        (lambda case: {"places": Unordered(case.order().astype(np.uint64)), "weights": case.order()}, {}, "bad-dtype"),
    ],
)
def test_a_contract_that_does_not_fit_is_an_error(oracle, fields, code):
    with pytest.raises(RefsimError) as error:
        verdict(kernel(run_places, oracle, **fields))
    assert error.value.code == code


def test_a_misspelled_entry_of_any_order_is_the_error_of_the_declaration():
    with pytest.raises(RefsimError, match=r"'clain'\n  at: any_order of source .*\n.*claim"):
        verdict(kernel(run_places, oracle_places, any_order=("claim", "clain")))


def test_values_within_bounds_stand_beside_sets():
    def oracle(case: Tokens) -> dict[str, Any]:
        weights = np.sort(case.order()) * 0.5
        return {"places": Unordered(case.order(), groups=case.starts()), "weights": Bounded(weights, 40.0)}

    promise = Promise.SET(because="every weight lies within 40 of its own")
    assert verdict(kernel(run_places, oracle, promise=promise, corpus=(Tokens(),))).status == "pass"
    narrow = replace(kernel(run_places, oracle, promise=promise), oracle=lambda case: oracle(case) | {
        "weights": Bounded(np.sort(case.order()) * 0.5, 0.25)
    })  # fmt: skip
    assert verdict(narrow).status == "fail"
