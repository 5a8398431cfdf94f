"""The replay of whole recordings: what it says of right and wrong models, and that the model runs on arrays not NumPy's."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conformance.special_functions_replay import MODELS, chosen, main
from refsim.silicon.special_functions import recorded


class Apart(np.ndarray):
    """An array that, as those of a GPU, is computed with nothing but its own kind and numbers."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **others: Any) -> Any:
        if out:
            others["out"] = tuple(plain(each) for each in out)
        return apart(getattr(ufunc, method)(*map(plain, inputs), **others))

    def __getitem__(self, key: Any) -> Any:
        return apart(self.view(np.ndarray)[tuple(map(plain, key)) if isinstance(key, tuple) else plain(key)])

    def setflags(self, *_: Any, **__: Any) -> None:
        raise AttributeError("setflags")


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray) and value.ndim and not isinstance(value, Apart):
        raise TypeError(f"NumPy's array of shape {value.shape}")
    return value.view(np.ndarray) if isinstance(value, Apart) else value


def apart(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(apart(each) for each in value)
    return np.asarray(value).view(Apart) if isinstance(value, np.ndarray | np.generic) else value


class ApartLibrary(SimpleNamespace):
    """NumPy's functions on such arrays, but errstate."""

    def __getattr__(self, name: str) -> Any:
        if name == "errstate":
            raise AttributeError(name)
        found = getattr(np, name)
        if isinstance(found, type) or not callable(found):
            return found
        return lambda *arguments, **named: apart(found(*map(plain, arguments), **named))


def asarray(values: np.ndarray) -> Apart:
    return values.view(Apart)


def test_the_model_runs_on_arrays_of_another_library(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "apart", ApartLibrary(__name__="apart", __version__="1", asarray=asarray))  # type: ignore[arg-type]
    assert main(["ex2_approx_f32", "rsqrt_approx_f64", "--library", "apart", "--groups", "1016:1017"]) == 0
    assert "apart 1, 1 processes" in capsys.readouterr().out
    assert type(MODELS["rcp_approx_f32"](np.uint32([[0x3F800000]]))) is np.ndarray


def test_a_page_keeps_rows_that_were_not_asked_for(tmp_path: Any) -> None:
    page = tmp_path / "page.json"
    page.write_text('{"sin (numpy)": 1, "rcp_approx_ftz_f32 (numpy)": 2, "rcp_approx_ftz_f32 (cupy)": 3}')
    assert main(["rcp_approx_ftz_f32", "--groups", "0:4096:2048", "-o", str(page)]) == 0
    rows = json.loads(page.read_text())
    assert (rows["sin (numpy)"], rows["rcp_approx_ftz_f32 (cupy)"]) == (1, 3)
    assert {key: rows["rcp_approx_ftz_f32 (numpy)"][key] for key in ("groups", "inputs", "differing")} == {
        "groups": 2,
        "inputs": 2 << 20,
        "differing": [],
    }


def test_a_wrong_model_is_named_by_its_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """1 / x one place too high where x is 1.5 alone: one group of two differs, and the command ends with 1."""
    right = MODELS["rcp_approx_ftz_f32"]
    monkeypatch.setitem(MODELS, "rcp_approx_ftz_f32", lambda words: right(words) + (words == 0x3FC00000))
    page = tmp_path / "page.json"
    assert main(["rcp_approx_ftz_f32", "--groups", "1019:1021", "-o", str(page)]) == 1
    assert json.loads(page.read_text())["rcp_approx_ftz_f32 (numpy)"]["differing"] == [0x3FC]


def test_the_committed_page_has_every_group_of_every_form() -> None:
    """By the definition all of them; ex2, whose large arrays take fewer passes, by these too."""
    page = json.loads((Path(__file__).parent / "reports/special_functions.json").read_text("utf-8"))
    assert set(page) == {*(f"{form} (cupy)" for form in chosen([])), *(f"{form} (numpy)" for form in chosen(["ex2*"]))}
    assert {(row["groups"], len(row["differing"])) for row in page.values()} == {(4096, 0)}
    assert len({row["model_sha256"] for row in page.values()}) == 1


def test_groups_that_were_not_begun_are_no_agreement() -> None:
    assert main(["rcp_approx_ftz_f32", "--seconds", "0"]) == 5


def test_forms_are_those_that_are_recorded() -> None:
    assert set(chosen(["div_*"])) == {"div_approx_f32", "div_approx_ftz_f32", "div_full_f32", "div_full_ftz_f32"}
    assert all(len(recorded(form)) == 4096 for form in chosen([]))
    with pytest.raises(SystemExit, match="no form is called cbrt"):
        chosen(["cbrt"])
