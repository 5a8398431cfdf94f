"""Which ptxas there are, and what each makes of a text: processes of their own."""

from importlib import metadata
from pathlib import Path, PurePath
from types import SimpleNamespace

import pytest

from conformance.blamed.planted import polynomial
from conformance.blamed.stand_in import StandInSilicon, stand_in_ptxas
from refsim.blame import builds_of, examined
from refsim.errors import RefsimError
from refsim.ptx.machine.assemblers import assembler_at


def test_each_named_ptxas_is_asked_at_each_level(tmp_path: Path) -> None:
    one = stand_in_ptxas(tmp_path / "one" / "bin", "13.0.88")
    two = stand_in_ptxas(tmp_path / "two", "13.5.37", (("add.rn.f32", "sub.rn.f32"),), levels=(2, 3))
    builds = builds_of([one, tmp_path / "two"], (0, 3), only_named=True)
    assert [(build.label, build.level) for build in builds] == [
        ("ptxas 13.0.88", 0),
        ("ptxas 13.0.88", 3),
        ("ptxas 13.5.37", 0),
        ("ptxas 13.5.37", 3),
    ]
    assert [build.assembler.program for build in builds[::2]] == [str(one), str(two)]
    found = examined(polynomial(), builds, StandInSilicon(), repeats=1)
    assert [row.state for row in found.rows] == ["equal", "equal", "equal", "differs"]
    assert found.rows[0].cubin is not None
    assert found.rows[0].cubin.registers == 8
    assert "--opt-level=0" in found.rows[0].cubin.flags


def test_a_folder_of_site_packages_or_of_a_toolkit_is_searched(tmp_path: Path) -> None:
    stand_in_ptxas(tmp_path / "nvidia" / "cu13" / "bin", "13.2.1")
    stand_in_ptxas(tmp_path / "bin", "12.9.86")
    found = builds_of([tmp_path], (3,), only_named=True)
    assert {build.label for build in found} == {"ptxas 13.2.1", "ptxas 12.9.86"}


def test_a_text_that_is_too_new_is_the_row_of_that_ptxas_alone(tmp_path: Path) -> None:
    old = stand_in_ptxas(tmp_path / "old", "12.4.131")
    new = stand_in_ptxas(tmp_path / "new", "13.0.88", refuses="sm_80")
    found = examined(polynomial(), builds_of([old, new], (3,), only_named=True), None)
    assert [row.state for row in found.rows] == ["refused", "assembled"]
    assert "[assembler-too-old] the text is PTX 9.0, which it does not read: ptxas 12.4.131" in found.rows[0].first
    assert (found.verdict, found.exit_code) == ("not-run", 0)


def test_where_every_ptxas_refuses_nothing_is_shown(tmp_path: Path) -> None:
    program = stand_in_ptxas(tmp_path / "ptxas", "13.0.88", refuses=".entry")
    found = examined(polynomial(), builds_of([program], (3,), only_named=True), StandInSilicon(), repeats=1)
    assert (found.verdict, found.exit_code) == ("not-run", 5)
    assert "stand-in refuses" in found.rows[0].first


@pytest.mark.parametrize("content", ["", "#!/bin/sh\necho no ptxas\n"])
def test_what_is_no_ptxas_is_said(tmp_path: Path, content: str) -> None:
    program = tmp_path / "ptxas"
    program.write_text(content)
    program.chmod(0o755)
    with pytest.raises(RefsimError, match="assembler-missing"):
        builds_of([program])
    with pytest.raises(RefsimError, match="assembler-missing"):
        builds_of([tmp_path / "absent"])


def test_those_that_are_found_come_first_and_each_release_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, second, other, named = (
        assembler_at(str(stand_in_ptxas(tmp_path / name, release)), name)
        for name, release in (("usual", "13.0.88"), ("wheel", "13.5.37"), ("other", "12.1.1"), ("named", "13.0.88"))
    )
    assert None not in (usual, second, other, named)
    wheels = [
        SimpleNamespace(
            metadata={"Name": name}, version="1", files=[PurePath("bin/ptxas")], locate_file=lambda _, at=at: at
        )
        for name, at in (
            ("nvidia-cuda-nvcc", second.program),
            ("nvidia-cuda-nvcc", usual.program),
            ("another", other.program),
        )
    ]
    monkeypatch.setattr(metadata, "distributions", lambda: wheels)
    monkeypatch.setattr("refsim.blame.builds.assemblers", lambda: (usual,))
    found = builds_of([Path(named.program)], (3,))
    assert [each.assembler.program for each in found] == [usual.program, second.program, named.program]
    assert [each.label for each in builds_of([Path(named.program)], (3,), only_named=True)] == ["ptxas 13.0.88"]
