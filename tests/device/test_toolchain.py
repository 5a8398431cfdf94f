"""Which NVRTC and which headers are taken, and why others are not; the bits of a text do not depend on where they lie."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from refsim.cuda_places import NVRTC_WHEELS, Place, wheel_version
from refsim.device import cache, toolchain
from refsim.device.compile import TARGETS, compile_ptx
from refsim.device.toolchain import HEADERS, Part, find_toolchain, opened, search
from refsim.errors import RefsimError
from tests import bare_machine

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ".".join((wheel_version(NVRTC_WHEELS[0]) or "").split(".")[:2])
"""Of the wheel that is installed: 13.0."""
pytestmark = pytest.mark.skipif(
    find_toolchain() is None, reason="NVRTC and its headers are not installed: pip install 'refsim[sim]'"
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Place]]:
    """The places that are asked, for a test to fill."""
    rows: list[Place] = []
    monkeypatch.setattr(toolchain, "places", lambda: rows)
    monkeypatch.setattr(cache, "cache_directory", lambda: tmp_path / "cache")
    search.cache_clear()
    yield rows
    search.cache_clear()


def place(name: str, root: Path) -> Place:
    return Place(name, lambda: iter((root,)))


def with_headers(folder: Path, release: str, *, without: tuple[str, ...] = (), text: str = "") -> Path:
    """Headers that say their release; they hold `text`."""
    for name in HEADERS:
        if name not in without:
            path = folder / "include" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    major, _, minor = release.partition(".")
    if "cuda_runtime_api.h" not in without:
        (folder / "include" / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION {major}0{minor}0\n")
    return folder


def with_library(folder: Path) -> Path:
    """The installed NVRTC alone."""
    bare_machine.make_toolkit(folder / "whole")
    (folder / "lib64").symlink_to(folder / "whole" / "lib64")
    return folder


def why(parts: tuple[Part, ...]) -> list[tuple[str, str, str]]:
    return [(part.kind, part.origin, part.lacks) for part in parts]


@pytest.mark.ci("compiles twice; a library with the headers of another place compiles in every run")
def test_a_toolkit_gives_the_text_that_the_wheels_give(asked: list[Place], tmp_path: Path) -> None:
    asked.append(place("toolkit of CUDA_HOME", bare_machine.make_toolkit(tmp_path / "cuda")))
    source = ROOT / "gpu" / "probes" / "doctor.cu"
    compiled = compile_ptx(source, "sm_89")
    assert (compiled.origin, compiled.compiler_from) == ("nvrtc", f"toolkit of CUDA_HOME, {RELEASE}")
    kept = (ROOT / "gpu" / "ptx" / "doctor.sm_89.ptx").read_text("utf-8").partition("\n")
    if f'"{compiled.compiler}"' in kept[0]:
        assert compiled.text == kept[2]
    assert compiled.facts("k")["compiler_from"] == f"toolkit of CUDA_HOME, {RELEASE}"
    assert str(tmp_path) not in compiled.text


def test_the_library_of_one_place_goes_with_the_headers_of_another(asked: list[Place], tmp_path: Path) -> None:
    """As on a machine with torch's NVRTC, the runtime's headers without those of crt, and a toolkit without NVRTC."""
    whole = bare_machine.make_toolkit(tmp_path / "cuda")
    torch = with_headers(with_library(tmp_path / "torch"), RELEASE, without=("crt/host_defines.h", "nv/target"))
    bare = tmp_path / "toolkit"
    bare.mkdir()
    (bare / "include").symlink_to(whole / "include")
    asked += [place("torch", torch), place("toolkit of CUDA_HOME", bare)]
    found = search()
    assert found.toolchain is not None
    assert found.toolchain.origin == f"torch, {RELEASE}; headers: toolkit of CUDA_HOME, {RELEASE}"
    assert why(found.parts) == [
        ("NVRTC", f"torch, {RELEASE}", ""),
        ("headers", f"torch, {RELEASE}", "no crt/host_defines.h, nv/target"),
        ("headers", f"toolkit of CUDA_HOME, {RELEASE}", ""),
    ]
    assert ".entry doctor_encode" in compile_ptx(ROOT / "gpu" / "probes" / "doctor.cu", "sm_80").text


def test_headers_of_another_release_are_tried_before_they_are_taken(asked: list[Place], tmp_path: Path) -> None:
    library = with_library(tmp_path / "library")
    broken = with_headers(tmp_path / "broken", "12.4", text="#error not for this compiler\n")
    sound = with_headers(tmp_path / "sound", "12.6", text="#pragma once\n")
    asked += [place("torch", library), place("first", broken), place("second", sound)]
    found = search()
    assert found.toolchain is not None
    assert found.toolchain.origin == f"torch, {RELEASE}; headers: second, 12.6"
    assert why(found.parts)[1:] == [
        (
            "headers",
            "first, 12.4",
            f"of 12.4, which NVRTC {RELEASE} does not compile: #error directive: not for this compiler",
        ),
        ("headers", "second, 12.6", ""),
    ]
    asked[1:] = [asked[1]]
    search.cache_clear()
    assert find_toolchain() is None, "nothing that fails is taken"


def test_what_does_not_load_or_is_too_old_is_passed_over_with_the_reason(asked: list[Place], tmp_path: Path) -> None:
    text = tmp_path / "text" / "lib64" / "libnvrtc.so.13"
    text.parent.mkdir(parents=True)
    text.write_text("no library")
    other = tmp_path / "other" / "lib64" / "libnvrtc.so.13"
    other.parent.mkdir(parents=True)
    builtins = next((tmp_path / "library").glob("*"), None) or with_library(tmp_path / "library")
    shutil.copyfile(next((tmp_path / "library" / "lib64").glob("libnvrtc-builtins.so*")), other)
    old = with_headers(tmp_path / "old", "11.8")
    asked += [place("text", text.parents[1]), place("other", other.parents[1]), place("old", old)]
    asked.append(place("new", builtins))
    found = search(70)
    assert found.toolchain is None
    reasons = {origin: lacks for _, origin, lacks in why(found.parts)}
    assert reasons["text, 0.0"].startswith("does not load: ")
    assert reasons["other, 0.0"].startswith("does not load: ")
    assert reasons["old, 11.8"] == "of CUDA 11.8"
    assert reasons[f"new, {RELEASE}"] == f"is {RELEASE}, which compiles no sm_70"


def test_the_library_says_what_it_compiles_for() -> None:
    found = find_toolchain()
    assert found is not None
    numbers = opened(found.library).architectures()
    assert {row.number for row in TARGETS} <= set(numbers)
    assert 70 not in numbers, "which CUDA 13 has dropped"
    assert find_toolchain(70) is None
    with pytest.raises(RefsimError, match="wrong-target"):
        compile_ptx(ROOT / "gpu" / "probes" / "doctor.cu", "sm_70")


def test_a_source_that_the_compiler_here_refuses_is_served_by_its_bundled_text(
    asked: list[Place], tmp_path: Path
) -> None:
    """Headers of an older release may lack one; the text was made from this very source all the same."""
    library = with_library(tmp_path / "library")
    asked += [place("torch", library), place("old", with_headers(tmp_path / "old", "12.6", text="#pragma once\n"))]
    compiled = compile_ptx(ROOT / "gpu" / "probes" / "conversions.cu", "sm_90a")
    assert (compiled.origin, compiled.compiler_from) == ("bundled", "")
    own = tmp_path / "own.cu"
    own.write_text("#include <cuda_fp4.h>\n")
    with pytest.raises(RefsimError, match="compile-error"):
        compile_ptx(own, "sm_90a")


class Library:
    """An NVRTC of some release; it compiles whatever it is given."""

    def __init__(self, release: tuple[int, int], *numbers: int) -> None:
        self.release, self.numbers = release, numbers

    def version(self) -> tuple[int, int]:
        return self.release

    def architectures(self) -> tuple[int, ...]:
        return self.numbers

    def compile(self, *_: object) -> None:
        return None


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> dict[str, Library]:
    """Libraries by the names of their files, for a test to fill; any other does not load."""
    rows: dict[str, Library] = {}

    def opened_here(path: str) -> Library:
        if Path(path).name not in rows:
            raise OSError(f"{path}: invalid ELF header")
        return rows[Path(path).name]

    monkeypatch.setattr(toolchain, "opened", opened_here)
    return rows


def with_files(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / "lib64" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def test_the_oldest_release_is_taken_and_one_before_it_is_not(asked, libraries, tmp_path: Path) -> None:
    libraries |= {"libnvrtc.so.11": Library((11, 9), 80), "libnvrtc.so.12": Library((12, 0), 80)}
    asked += [
        place("old", with_headers(with_files(tmp_path / "old", "libnvrtc.so.11"), "11.9")),
        place("new", with_headers(with_files(tmp_path / "new", "libnvrtc.so.12"), "12.0")),
    ]
    found = search(80)
    assert found.toolchain is not None
    assert found.toolchain.origin == "new, 12.0"
    assert why(found.parts)[:2] == [
        ("NVRTC", "old, 11.9", "is 11.9; 12.0 is needed"),
        ("headers", "old, 11.9", "of CUDA 11.9"),
    ]


def test_of_one_place_the_next_library_is_tried(asked, libraries, tmp_path: Path) -> None:
    libraries["libnvrtc.so.13"] = Library((13, 0), 80)
    folder = with_files(tmp_path / "cuda", "libnvrtc.so", "libnvrtc.so.13")
    asked.append(place("toolkit", with_headers(folder, "13.0")))
    found = search()
    assert found.toolchain is not None
    assert Path(found.toolchain.library).name == "libnvrtc.so.13"


def test_headers_of_the_same_release_win_over_nearer_ones(asked, libraries, tmp_path: Path) -> None:
    libraries["libnvrtc.so.12"] = Library((12, 9), 80)
    asked += [
        place("near", with_headers(with_files(tmp_path / "near", "libnvrtc.so.12"), "12.6")),
        place("far", with_headers(tmp_path / "far", "12.9")),
    ]
    found = search()
    assert found.toolchain is not None
    assert found.toolchain.origin == "near, 12.9; headers: far, 12.9"
    asked.pop()
    search.cache_clear()
    alone = search().toolchain
    assert alone is not None, "which compiles them all the same"
    assert alone.origin == "near, 12.9; headers: near, 12.6"
    assert alone.versions != found.toolchain.versions


def test_a_place_under_two_names_is_looked_at_once(asked, libraries, tmp_path: Path) -> None:
    folder = with_headers(with_files(tmp_path / "cuda", "libnvrtc.so.13"), "13.0", without=("mma.h",))
    (tmp_path / "link").symlink_to(folder)
    libraries["libnvrtc.so.13"] = Library((13, 0), 80)
    asked += [place("one", folder), place("other", tmp_path / "link")]
    assert [part.origin for part in search().parts] == ["one, 13.0", "one, 13.0"]


def test_another_file_of_a_toolkit_is_another_compiler(asked, libraries, tmp_path: Path) -> None:
    """A text in the cache is not taken for that of a library that was replaced."""
    libraries["libnvrtc.so.13"] = Library((13, 0), 80)
    folder = with_headers(with_files(tmp_path / "cuda", "libnvrtc.so.13"), "13.0")
    asked.append(place("toolkit", folder))
    before = find_toolchain()
    (folder / "lib64/libnvrtc.so.13").write_text("another build of it")
    search.cache_clear()
    after = find_toolchain()
    assert before is not None
    assert after is not None
    assert before.versions != after.versions


def test_the_nvcc_on_path_comes_first(asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("toolkit", "path"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin/nvcc").write_text("")
        (tmp_path / name / "bin/nvcc").chmod(0o755)
    asked.append(place("toolkit", tmp_path / "toolkit"))
    monkeypatch.setenv("PATH", str(tmp_path / "path/bin"))
    assert toolchain.find_nvcc() == str(tmp_path / "path/bin/nvcc")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert toolchain.find_nvcc() == str(tmp_path / "toolkit/bin/nvcc")
