"""docs/your-kernel.md: every example, word for word, verified as a user's file would be; and caught when it is made wrong."""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest

from refsim import device
from refsim.testing import find_kernels, run_campaign, verdicts

PAGE = Path(__file__).parents[1] / "docs/your-kernel.md"
SECTION = re.compile(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
IN_PYTHON = ("Reductions", "In Python")  # no declarations: tests/test_examples.py runs them
EXAMPLES = {title: code for title, code in SECTION.findall(PAGE.read_text("utf-8")) if title not in IN_PYTHON}
NEEDS = {"Triton": "triton", "numba-cuda": "numba-cuda"}
ON_A_GPU = "A Python function on a real GPU"


def test_every_way_has_an_example_of_under_20_lines() -> None:
    assert [title.split()[0] for title in EXAMPLES] == ["CUDA", "Triton", "numba-cuda", "CuPy", "A"]
    for title, code in EXAMPLES.items():
        assert len([line for line in code.splitlines() if line.strip()]) <= 20, title


def needed(title: str) -> None:
    for package in ("nvidia-cuda-nvrtc", NEEDS.get(title, "numpy")):
        try:
            version(package)
        except PackageNotFoundError:
            pytest.skip(f"{package} is not installed: pip install {package}")
    if title.startswith("numba-cuda") and not hasattr(np, "row_stack"):
        pytest.skip(f"numba-cuda up to 0.30.4 asks for numpy.row_stack, which NumPy {np.__version__} has not")


LATER = pytest.mark.ci("the page's own commands, and kernels of Triton in tests/ptx, run in every run")


@pytest.mark.parametrize(
    "title",
    [pytest.param(title, marks=LATER) if title == "Triton" else title for title in EXAMPLES if title != ON_A_GPU],
)
def test_an_example_passes_and_its_mistake_is_found(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed(title)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    for name, code, status in (
        ("right.py", EXAMPLES[title], verdicts.PASS),
        ("wrong.py", EXAMPLES[title].replace("np.uint32(3)", "np.uint32(4)"), verdicts.FAIL),
    ):
        file = tmp_path / name
        file.write_text(code, "utf-8")
        (kernel,) = find_kernels([file])
        verdict = run_campaign(kernel, device.open("sim"), cases=4)
        assert verdict.status == status, verdict.finding


def test_the_function_is_unsupported_on_the_simulator(tmp_path: Path) -> None:
    file = tmp_path / "right.py"
    file.write_text(EXAMPLES[ON_A_GPU], "utf-8")
    (kernel,) = find_kernels([file])
    assert run_campaign(kernel, device.open("sim"), cases=2).status == verdicts.UNSUPPORTED
