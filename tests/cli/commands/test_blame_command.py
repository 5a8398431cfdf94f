"""refsim blame: exit codes, what it says, and the PTX that it writes; the GPU is a stand-in."""

import json

import numpy as np
import pytest

from conformance.blamed.planted import CONTRACTED, LAST_WINS, PLANTED, POLYNOMIAL
from conformance.blamed.stand_in import InProcess, StandInSilicon, stand_in_ptxas
from refsim import blame, device
from refsim.errors import Kind, RefsimError

LAUNCH = ("--grid", "2", "--block", "8", "--arg", "x.npy", "--arg", "zeros:f32:16", "--arg", "u32:12")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """poly.ptx, race.ptx, x.npy, a sound ptxas and a wrong one, and a GPU."""
    (tmp_path / "poly.ptx").write_text(POLYNOMIAL)
    (tmp_path / "edited.ptx").write_text(POLYNOMIAL.replace(*PLANTED["rounding"]))
    (tmp_path / "fused.ptx").write_text(CONTRACTED)
    (tmp_path / "other.ptx").write_text(POLYNOMIAL.replace("polynomial(.param .u64 x", "polynomial(.param .u32 x"))
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


@pytest.mark.ci("seconds; the exit codes of all verdicts are held in every run")
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
        (("poly.ptx", "polynomial", *LAUNCH, "--ptxas", "nowhere"), 2, "[assembler-missing]"),
        (("poly.ptx", "polynomial", *LAUNCH, "--ptxas", "sound", "--edited", "x.npy"), 3, "neither a cubin nor PTX"),
        (
            ("poly.ptx", "polynomial", *LAUNCH, "--ptxas", "sound", "--edited", "other.ptx"),
            2,
            "entry polynomial takes 8 + 8 + 4 B; the edited copy takes 4 + 8 + 4 B",
        ),
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
def test_without_a_gpu_the_exit_code_is_4(refsim, monkeypatch, tmp_path):
    def none(name, target=None):
        raise RefsimError("no-cuda-driver", "no driver", kind=Kind.MISSING)

    monkeypatch.setattr(device, "open", none)
    assert refsim("blame", "poly.ptx", "polynomial", *LAUNCH, "--ptxas", "sound").code == 4
    absent = refsim("blame", "poly.ptx", "polynomial", *LAUNCH, "--ptxas", "sound")
    assert "help: --device sim finds races" in absent.err
    (tmp_path / "mine.cubin").write_bytes(b"\x7fELF of another chip")
    asked = ("blame", "poly.ptx", "polynomial", *LAUNCH, "--ptxas", "sound", "--only-ptxas", "--device", "sim")
    given = refsim(*asked, "--edited", "mine.cubin")
    assert given.code == 4
    assert "[needs-a-gpu]" in given.err


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("poly.ptx", "polynomial", *LAUNCH), 5, "every bit is fixed: on a GPU each build must write these results"),
        (("race.ptx", "last_wins", "--block", "64", "--arg", "zeros:u32:1"), 1, "race.ptx: race: what is written"),
        (("poly.ptx", "polynomial", *LAUNCH, "--edited", "edited.ptx"), 1, "poly.ptx: edited: "),
        (("fused.ptx", "polynomial", *LAUNCH), 5, "12 elements may differ on a GPU, after:"),
    ],
)
def test_what_the_simulator_alone_says(refsim, arguments, code, said):
    run = refsim("blame", *arguments, "--device", "sim", "--ptxas", "sound", "--only-ptxas", "--opt", "3")
    assert run.code == code, run.err
    assert said in run.out


@pytest.mark.usefixtures("here")
def test_the_whole_ptx_is_written_to_be_edited(refsim, tmp_path):
    asked = ("--ptxas", "sound", "--only-ptxas", "--assemble-only", "--save-ptx", str(tmp_path / "whole.ptx"))
    assert refsim("blame", "poly.ptx", "polynomial", *asked).code == 0
    assert (tmp_path / "whole.ptx").read_text() == POLYNOMIAL
    assert refsim("blame", "poly.ptx", "polynomia", *asked).code == 2


@pytest.mark.usefixtures("here")
def test_a_ptxas_that_is_too_old_has_one_line(refsim, tmp_path):
    stand_in_ptxas(tmp_path / "old", "12.4.131")
    run = refsim(
        "blame", "poly.ptx", "polynomial", "--ptxas", "old", "--ptxas", "sound", "--only-ptxas", "--assemble-only"
    )
    assert run.code == 0
    assert run.out.count("not asked, the text is PTX 9.0: ptxas 12.4.131") == 1
    alone = refsim("blame", "poly.ptx", "polynomial", "--ptxas", "old", "--only-ptxas", "--assemble-only")
    assert alone.code == 4
    assert "[assembler-too-old]" in alone.err
