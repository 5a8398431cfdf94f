"""Inputs that have no effect, found by runs on other inputs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refsim.kernels import Kernel
from refsim.testing.recipes import Tensor
from refsim.testing.suspects import OutOfTimeError
from refsim.testing.suspects.budget import Budget
from refsim.testing.suspects.feeding import Diet
from refsim.testing.suspects.unread import unread

PROBLEM = Tensor(64, "bf16", "gaussian", 1)


def with_addend(kernel: Kernel) -> Kernel:
    """The kernel with a second input, which its entry may or may not add."""

    def run(launcher: Any, problem: Tensor) -> dict[str, np.ndarray]:
        x = launcher.upload(problem.codes(), name="x")
        z = launcher.upload(np.arange(problem.n, dtype=np.float32), name="z")
        y = launcher.output(problem.n, np.uint16, name="y")
        launcher.launch("halve", (1,), (32,), [x, z, y])
        return {"y": launcher.read(y)}

    return replace(kernel, run=run)


def halved(launcher: Any, x: Any, z: Any, y: Any, *, adds: bool) -> None:
    values = launcher.view(x).view(ml_dtypes.bfloat16).astype(np.float32) / 2
    values = values + launcher.view(z) if adds else values
    launcher.view(y)[:] = values.astype(ml_dtypes.bfloat16).view(np.uint16)


def test_an_input_without_effect_is_named(halve_kernel: Kernel, fake_device: Callable[..., Any]) -> None:
    device = fake_device(lambda *given: halved(*given, adds=False))
    found = unread(Diet(with_addend(halve_kernel), device), PROBLEM, budget=Budget(60.0))
    assert found is not None
    assert (found.suspect, found.places) == ("left out", ("input z",))


def test_inputs_that_count_are_not_named(halve_kernel: Kernel, fake_device: Callable[..., Any]) -> None:
    device = fake_device(lambda *given: halved(*given, adds=True))
    assert unread(Diet(with_addend(halve_kernel), device), PROBLEM, budget=Budget(60.0)) is None


def test_the_search_ends_with_its_work(halve_kernel: Kernel, fake_device: Callable[..., Any]) -> None:
    device = fake_device(lambda *given: halved(*given, adds=True))
    with pytest.raises(OutOfTimeError):
        unread(Diet(with_addend(halve_kernel), device), PROBLEM, budget=Budget(0.0))


def test_one_number_for_all_places_is_left_as_it_is(halve_kernel: Kernel, fake_device: Callable[..., Any]) -> None:
    """An input of equal codes cannot be told from one without effect."""
    device = fake_device(lambda *given: halved(*given, adds=False))
    run = with_addend(halve_kernel).run

    class Equal:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def upload(self, array: np.ndarray, *, name: str) -> Any:
            return self.inner.upload(np.zeros_like(array) if name == "z" else array, name=name)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    kernel = replace(with_addend(halve_kernel), run=lambda launcher, problem: run(Equal(launcher), problem))
    assert unread(Diet(kernel, device), PROBLEM, budget=Budget(60.0)) is None
