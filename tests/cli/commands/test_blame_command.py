"""refsim blame: exit codes, what it says, and the PTX that it writes; the GPU is a stand-in."""

import json

import numpy as np
import pytest

from conformance.blamed.planted import LAST_WINS, PLANTED, POLYNOMIAL
from conformance.blamed.stand_in import InProcess, StandInSilicon, stand_in_ptxas
from refsim import blame, device
from refsim.errors import Kind, RefsimError

LAUNCH = ("--grid", "2", "--block", "8", "--arg", "x.npy", "--arg", "zeros:f32:16", "--arg", "u32:12")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """poly.ptx, race.ptx, x.npy, a sound ptxas and a wrong one, and a GPU."""
    (tmp_path / "poly.ptx").write_text(POLYNOMIAL)
    (tmp_path / "edited.ptx").write_text(POLYNOMIAL.replace(*PLANTED["rounding"]))
    (tmp_path / "race.ptx").write_text(LAST_WINS)
    np.save(tmp_path / "x.npy", np.linspace(-4, 4, 12, dtype=np.float32))
    stand_in_ptxas(tmp_path / "sound", "13.0.88")
    stand_in_ptxas(tmp_path / "wrong", "13.5.37", (PLANTED["rounding"],), (1,))
    monkeypatch.setattr(device, "open", lambda name, target=None: StandInSilicon())


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("poly.ptx", "polynomial", *LAUNCH, "--ptxas", "sound", "--opt", "1"), 0, "poly.ptx: none: every build writes"),
        (("race.ptx", "last_wins", "--block", "64", "--arg", "zeros:u32:1", "--ptxas", "sound"), 1, ": race: what is"),
        (("poly.ptx", "polynomial", *LAUNCH, "--ptxas", "wrong", "--opt", "1", "--no-shrink"), 1, ": undecided: one"),
        (("poly.ptx", "polynomial", *LAUNCH, "--ptxas", "wrong", "--assemble-only"), 0, "not-run"),
        (("poly.ptx", "polynomial", *LAUNCH, "--ptxas", "sound", "--opt", "3", "--edited", "edited.ptx", "--no-shrink"), 1,
         ": edited: what was edited differs"),
    ],
)  # fmt: skip
def test_the_exit_code_is_the_verdict(refsim, arguments, code, said):
    run = refsim("blame", *arguments, "--only-ptxas", "--repeats", "1")
    assert run.code == code, run.err
    assert said in run.out


@pytest.mark.usefixtures("here")
def test_a_wrong_ptxas_is_blamed_and_the_smallest_ptx_written(refsim, tmp_path, monkeypatch):
    builds = InProcess("ptxas 13.0.88", 1), InProcess("ptxas 13.5.37", 1, (PLANTED["rounding"],))
    monkeypatch.setattr(blame, "builds_of", lambda *named, **how: builds)
    small = tmp_path / "small.ptx"
    run = refsim("blame", "poly.ptx", "polynomial", *LAUNCH, "--repeats", "1", "--save-ptx", str(small), "--as", "json")
    assert run.code == 1, run.err
    found = json.loads(run.out)
    assert (found["verdict"], found["blamed"]) == ("ptxas", ["ptxas 13.5.37 -O1"])
    assert [row["state"] for row in found["builds"]] == ["equal", "differs"]
    assert found["smallest"]["ptx"] == small.read_text()
    assert "fma.rn.f32" in small.read_text()
    assert found["smallest"]["instructions"] < 20


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("poly.ptx", "--ptxas", "sound"), 2, "without an entry"),
        (("poly.ptx", "polynomial", "--ptxas", "sound"), 2, "[nothing-compared]"),
        (("poly.ptx", "polynomial", *LAUNCH, "--ptxas", "nowhere"), 2, "[bad-ptxas]"),
        (("poly.ptx", "polynomial", *LAUNCH, "--ptxas", "sound", "--edited", "x.npy"), 3, "neither a cubin nor PTX"),
        (("absent.ptx", "polynomial", *LAUNCH, "--ptxas", "sound"), 3, "absent.ptx"),
        (("fp8_amax", "--ptxas", "sound", "--grid", "2"), 2, "it launches itself"),
        (("fp8_amaxx", "--ptxas", "sound"), 2, "[unknown-kernel]"),
    ],
)
def test_bad_input_is_one_error(refsim, arguments, code, said):
    run = refsim("blame", *arguments, "--only-ptxas")
    assert (run.code, run.out) == (code, "")
    assert said in run.err


@pytest.mark.usefixtures("here")
def test_without_a_gpu_the_exit_code_is_4(refsim, monkeypatch):
    def none(name, target=None):
        raise RefsimError("no-cuda-driver", "no driver", kind=Kind.MISSING)

    monkeypatch.setattr(device, "open", none)
    assert refsim("blame", "poly.ptx", "polynomial", *LAUNCH, "--ptxas", "sound").code == 4
    monkeypatch.undo()
    simulated = refsim("blame", "poly.ptx", "polynomial", "--device", "sim")
    assert simulated.code == 4
    assert "[blame-needs-a-gpu]" in simulated.err
