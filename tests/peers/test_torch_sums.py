"""Sums of torch on a CPU: the cascade that `refsim.causes` writes down is what torch.sum returns, at every vector width."""

import os
import subprocess
import sys

import numpy as np
import pytest

from refsim.causes import Family, RowOperands, explain_diff
from refsim.computations.host_sums import cascade

LENGTHS = [*range(1, 160), *range(160, 5001, 97), 5000, 20000]


def differing_lengths() -> list[int]:
    """Lengths at which torch adds otherwise, two rows together and one alone."""
    import torch

    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    found = []
    for columns in LENGTHS:
        spread = 2.0 ** random.integers(-8, 9, (2, columns))
        x = (random.normal(0, 1, (2, columns)) * spread).astype(np.float32)
        words = [cascade(x), cascade(x[:1])]
        theirs = [torch.from_numpy(each).sum(dim=-1).numpy() for each in (x, x[:1])]
        if any((one.view(np.uint32) != other.view(np.uint32)).any() for one, other in zip(words, theirs, strict=True)):
            found.append(columns)
    return found


@pytest.mark.peers("torch")
def test_the_cascade_is_that_of_torch_sum() -> None:
    assert differing_lengths() == []


@pytest.mark.peers("torch")
@pytest.mark.ci("starts torch twice more")
@pytest.mark.parametrize("width", ["default", "avx2"])
def test_the_cascade_is_the_same_without_wider_vectors(width: str) -> None:
    """torch chooses its kernels once a process; with AVX-512 the test above has them."""
    line = "from tests.peers.test_torch_sums import differing_lengths; print(differing_lengths())"
    told = {**os.environ, "ATEN_CPU_CAPABILITY": width, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", line], env=told, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.mark.peers("torch")
def test_a_norm_of_torch_is_named() -> None:
    import torch

    x, w = (
        torch.from_numpy(np.random.default_rng(1).normal(1, 1, shape).astype(np.float32)) for shape in ((16, 200), 200)
    )
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w
    given = RowOperands(function="rms_norm", x=x.numpy(), weight=w.numpy(), eps=1e-5)
    named = explain_diff(y.numpy(), operands=given).named
    assert [cause.family for each in named for cause in each.causes] == [Family.HOST]
    assert "torch.sum" in named[0].causes[0].says
