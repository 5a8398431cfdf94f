"""Where parts of CUDA are looked for, in which order, and that the extras bring what is looked for."""

import re
import tomllib
from pathlib import Path

import pytest

from refsim import cuda_places
from refsim.bundled import PACKAGES
from refsim.cuda_places import BESIDE_NVCC, HEADER_WHEELS, NVRTC_WHEELS, PTXAS_WHEELS, Place, places

ROOT = Path(__file__).resolve().parents[1]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


def brought(extra: str) -> dict[str, str]:
    """The packages of an extra with their pins, those of the extras that it names among them."""
    found: dict[str, str] = {}
    for requirement in EXTRAS[extra]:
        if own := re.fullmatch(r"refsim\[([\w,-]+)\]", requirement):
            for name in own[1].split(","):
                found |= brought(name)
        else:
            name, pin = re.fullmatch(r"([\w.-]+)(.*)", requirement).groups()  # type: ignore[union-attr]
            found[name] = pin
    return found


def filled(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return root


def test_the_extras_bring_every_wheel_that_is_looked_for() -> None:
    assert {*NVRTC_WHEELS, *HEADER_WHEELS} <= set(brought("sim"))
    assert {*NVRTC_WHEELS, *HEADER_WHEELS, PTXAS_WHEELS[0], "cuda-bindings"} <= set(brought("gpu"))
    assert "pycuda" not in brought("gpu"), "pip would have to compile it, with a toolkit"
    pins = {brought("gpu")[wheel] for wheel in (*NVRTC_WHEELS, *HEADER_WHEELS, PTXAS_WHEELS[0])}
    assert pins == {"==13.0.*"}, "parts of one release, whose PTX drivers of CUDA 13.0 take"


def test_every_extra_that_an_error_names_exists() -> None:
    sources = [path for folder in PACKAGES for path in folder.rglob("*.py")]
    said = {
        (path.name, name)
        for path in (*sources, *(ROOT / "docs").glob("*.md"), ROOT / "README.md")
        for names in re.findall(r"refsim\[([a-z,-]+)\]", path.read_text("utf-8"))
        for name in names.split(",")
    }
    assert said
    assert not [(file, name) for file, name in said if name not in EXTRAS]


def test_places_are_asked_in_the_order_that_the_page_gives() -> None:
    order = [place.name for place in places()]
    assert order == [
        "wheels",
        "toolkit of CUDA_HOME",
        "toolkit of CUDA_PATH",
        "toolkit next to nvcc",
        "toolkit in /usr/local/cuda",
        "toolkit in /opt/cuda",
        "torch's wheels, cu13",
        "torch's wheels, cu12",
        "torch",
    ]
    text = (ROOT / "conformance/reports/how_sure.md").read_text("utf-8")
    rows = re.findall(r"^\| \d \| (.+?) \|", text[text.index("| | place |") :], re.MULTILINE)
    assert rows == [f"the {name}" if name.startswith("toolkit") else name for name in order]
    page = (ROOT / "docs/evidence.md").read_text("utf-8")
    places_ = [page.index(word) for word in ("wheels, then", "CUDA_HOME", "CUDA_PATH", "/usr/local/cuda", "/opt/cuda")]
    assert places_ == sorted(places_)


@pytest.mark.parametrize(
    ("files", "library"),
    [
        (
            ("lib64/libnvrtc.so.13", "lib64/libnvrtc-builtins.so.13.0", "lib64/libnvrtc.alt.so.13"),
            "lib64/libnvrtc.so.13",
        ),
        (("targets/x86_64-linux/lib/libnvrtc.so.12",), "targets/x86_64-linux/lib/libnvrtc.so.12"),
        (("lib/libnvrtc-672ee683.so.12", "lib/libnvrtc-builtins-2dc.so.12.4"), "lib/libnvrtc-672ee683.so.12"),
        (
            ("bin/x64/nvrtc64_130_0.dll", "bin/x64/nvrtc64_130_0.alt.dll", "bin/x64/nvrtc-builtins64_130.dll"),
            "bin/x64/nvrtc64_130_0.dll",
        ),
        (("lib64/libnvrtc_static.a", "lib64/libnvrtc-builtins.so.13.0"), None),
    ],
)
def test_the_library_is_known_among_what_lies_beside_it(
    tmp_path: Path, files: tuple[str, ...], library: str | None
) -> None:
    root = filled(tmp_path, *files)
    found = Place("a toolkit", lambda: iter((root,))).libraries()
    assert found == (() if library is None else (root / library,))


def test_of_several_names_the_shortest_comes_first_and_a_link_counts_once(tmp_path: Path) -> None:
    root = filled(tmp_path, "lib64/libnvrtc.so.13.0.88", "lib64/libnvrtc.so.12", "targets/x/include/cuda_fp8.h")
    (root / "lib64/libnvrtc.so").symlink_to("libnvrtc.so.13.0.88")
    (root / "include").symlink_to("targets/x/include")
    place = Place("a toolkit", lambda: iter((root,)))
    assert [path.name for path in place.libraries()] == ["libnvrtc.so", "libnvrtc.so.12"]
    assert place.include() == (root / "include",)


def named(name: str) -> Place:
    return next(place for place in places() if place.name == name)


def test_a_toolkit_lies_where_its_nvcc_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /usr/bin/nvcc is a link into a toolkit."""
    (filled(tmp_path, "cuda/bin/nvcc", "cuda/include/cuda_fp8.h", "usr/bin/ls") / "cuda/bin/nvcc").chmod(0o755)
    (tmp_path / "usr/bin/nvcc").symlink_to(tmp_path / "cuda/bin/nvcc")
    monkeypatch.setenv("PATH", str(tmp_path / "usr/bin"))
    assert named(BESIDE_NVCC).include() == (tmp_path / "cuda/include",)


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_each_variable_names_its_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(filled(tmp_path, "include/cuda_fp8.h")))
    found = {name: named(f"toolkit of {name}").include() for name in ("CUDA_HOME", "CUDA_PATH")}
    assert [name for name, folders in found.items() if folders] == [variable]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "")
    assert named(f"toolkit of {variable}").include() == (), "the working folder is no toolkit"


def test_wheels_are_known_by_the_files_that_they_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a wheel lists first may lie beside its folder, and what it lists may be gone."""
    wheel, ptxas = NVRTC_WHEELS[0], PTXAS_WHEELS[1]
    for name, files in (
        (wheel, ("nvidia/cu99/lib/libnvrtc.so.99",)),
        (ptxas, ("nvidia/cu99/bin/ptxas", "nvidia/cu99/bin/nvcc", "nvidia/cu99/bin/ptxas-blackwell")),
    ):
        folder = f"{name.replace('-', '_')}-99.1.dist-info"
        filled(tmp_path, f"{folder}/METADATA", *files)
        (tmp_path / folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.1\n")
        (tmp_path / folder / "RECORD").write_text("".join(f"{file},,\n" for file in (f"{folder}/METADATA", *files)))
    (tmp_path / "nvidia/cu99/bin/ptxas-blackwell").unlink()
    monkeypatch.setattr(cuda_places.sys, "path", [str(tmp_path)])
    for function in (cuda_places._wheel_roots, cuda_places.programs_of_wheel):
        function.cache_clear()
    try:
        assert cuda_places._wheel_roots() == (tmp_path / "nvidia/cu99",)
        assert named("wheels").libraries() == (tmp_path / "nvidia/cu99/lib/libnvrtc.so.99",)
        assert cuda_places.programs_of_wheel(ptxas) == ((str(tmp_path / "nvidia/cu99/bin/ptxas"), f"{ptxas} 99.1"),)
        assert cuda_places.programs_of_wheel(PTXAS_WHEELS[0]) == ()
    finally:
        for function in (cuda_places._wheel_roots, cuda_places.programs_of_wheel):
            function.cache_clear()


def test_one_toolkit_may_be_many_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's wheels of CUDA 12 lie; the interpreter's own folders hold nothing of it."""
    filled(tmp_path, "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "nvidia/cuda_runtime/include/cuda_fp8.h")
    filled(tmp_path, "nvidia/cuda_nvcc/include/crt/host_defines.h", "nvidia/cuda_nvcc/bin/ptxas")
    monkeypatch.setattr(cuda_places.sys, "path", [str(tmp_path), "", str(tmp_path / "absent")])
    place = next(place for place in places() if place.name == "torch's wheels, cu12")
    assert [path.name for path in place.libraries()] == ["libnvrtc.so.12"]
    assert [path.parent.name for path in place.include()] == ["cuda_nvcc", "cuda_runtime"]
    assert place.programs("ptxas") == (tmp_path / "nvidia/cuda_nvcc/bin/ptxas",)


def test_a_variable_that_is_empty_or_names_nothing_is_no_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = next(place for place in places() if place.name == "toolkit of CUDA_HOME")
    for value in ("", str(tmp_path / "absent")):
        monkeypatch.setenv("CUDA_HOME", value)
        assert (home.libraries(), home.include(), home.programs("nvcc")) == ((), (), ())
