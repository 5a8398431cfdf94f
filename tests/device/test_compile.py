"""CUDA source to PTX to cubin: hashes, fallback, errors, the cache, and the PTX that is kept under gpu/ptx."""

import hashlib
import itertools
import os
import re
import runpy
from importlib import metadata
from pathlib import Path

import pytest

from refsim.device import assembling, cache, compile, kernel_sources, toolchain
from refsim.device.compile import TARGETS, CompiledPtx, assemble, bundled_text, compile_ptx
from refsim.errors import Kind, RefsimError
from refsim.kernel_code import KernelCode

ROOT = Path(__file__).resolve().parents[2]
QUANTIZE = ROOT / "gpu" / "kernels" / "fp8_quantize.cu"
KERNELS = sorted((ROOT / "gpu" / "kernels").glob("*.cu"))
targets_of = runpy.run_path(str(ROOT / "gpu" / "refresh_ptx.py"))["targets_of"]
BUNDLED = [
    pytest.param(source, target, id=f"{source.stem}-{target}") for source in KERNELS for target in targets_of(source)
]
AT_NIGHT = pytest.mark.night("the file is compiled for one target in the larger profile")
MAIN = {source: "sm_90a" if "sm_90a" in targets_of(source) else targets_of(source)[0] for source in KERNELS}
COMPILED = [
    row if MAIN[row.values[0]] == row.values[1] else pytest.param(*row.values, id=row.id, marks=AT_NIGHT)
    for row in BUNDLED
]
LATER = pytest.mark.ci("two targets are assembled for in every run")
ASSEMBLED = [pytest.param(row.name, marks=() if row.number in (90, 120) else LATER) for row in TARGETS]
SMALL = 'extern "C" __global__ void fill(unsigned* to) { to[threadIdx.x] = VALUE; }\n'


def installed(*names: str) -> bool:
    try:
        return bool([metadata.version(name) for name in names])
    except metadata.PackageNotFoundError:
        return False


needs_nvrtc = pytest.mark.skipif(
    not installed("nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl"),
    reason="NVRTC and its headers are not installed: pip install 'refsim[sim]'",
)
needs_ptxas = pytest.mark.skipif(
    not installed("nvidia-cuda-nvcc"), reason="ptxas is not installed: pip install 'nvidia-cuda-nvcc==13.0.*'"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is read from or left in the user's cache."""
    directory = tmp_path / "cache"
    monkeypatch.setattr(cache, "cache_directory", lambda: directory)
    return directory


@pytest.fixture
def without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile, "find_toolchain", lambda number=0: None)


def small(directory: Path, text: str = SMALL) -> Path:
    path = directory / "kernels" / "small.cu"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


# ---------------------------------------------------------------------------------------------------------------------
# The bundled PTX


@pytest.mark.ci("the smallest of them is compiled in every run, and every header is read")
@needs_nvrtc
@pytest.mark.parametrize(("source", "target"), COMPILED)
def test_every_bundled_ptx_is_what_nvrtc_returns(source: Path, target: str) -> None:
    assert_bundled(source, target)


@needs_nvrtc
def test_the_smallest_bundled_ptx_is_what_nvrtc_returns() -> None:
    assert_bundled(QUANTIZE, "sm_90a")


def test_the_quickstart_names_the_ptx_that_is_bundled() -> None:
    page = (ROOT / "docs/quickstart.md").read_text("utf-8")
    said = re.findall(r"^(\w+\.cu)\nptx_sha256 +([0-9a-f]{64})$", page, re.MULTILINE)
    general = [source for source in KERNELS if len(targets_of(source)) == len(TARGETS)]  # what `refsim verify` runs
    kept = {source.name: (ROOT / "gpu" / "ptx" / f"{source.stem}.sm_90a.ptx").read_bytes() for source in general}
    assert dict(said) == {name: hashlib.sha256(ptx.partition(b"\n")[2]).hexdigest() for name, ptx in kept.items()}


def assert_bundled(source: Path, target: str) -> None:
    compiled = compile_ptx(source, target)
    kept = (ROOT / "gpu" / "ptx" / f"{source.stem}.{target}.ptx").read_text()
    if f'"{compiled.compiler}"' not in kept.partition("\n")[0]:
        pytest.skip(f"the bundled PTX was made by another compiler than {compiled.compiler}")
    assert kept == bundled_text(compiled), "run: python gpu/refresh_ptx.py"


@pytest.mark.parametrize(("source", "target"), BUNDLED)
def test_every_bundled_ptx_says_that_it_is_of_this_source_and_these_flags(
    source: Path, target: str, without_nvrtc: None
) -> None:
    assert compile_ptx(source, target).origin == "bundled", "run: python gpu/refresh_ptx.py"


@pytest.mark.parametrize("target", [row.name for row in TARGETS])
def test_bundled_ptx_serves_without_nvrtc(target: str, without_nvrtc: None) -> None:
    compiled = compile_ptx(QUANTIZE, target)
    assert compiled.origin == "bundled"
    assert compiled.compiler == "NVRTC 13.0.88"
    assert f".target {target}\n" in compiled.text
    assert "fp8_quantize_bf16_e4m3(" in compiled.text
    assert not compiled.text.startswith("// bundled")


def test_every_target_is_bundled() -> None:
    assert compile.bundled_targets() == [row.name for row in TARGETS]


def test_bundled_ptx_of_an_edited_source_is_refused(tmp_path: Path, without_nvrtc: None) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "ptx").mkdir()
    edited = tmp_path / "kernels" / QUANTIZE.name
    edited.write_text(QUANTIZE.read_text() + "// edited\n")
    kept = ROOT / "gpu" / "ptx" / "fp8_quantize.sm_90a.ptx"
    (tmp_path / "ptx" / kept.name).write_text(kept.read_text())
    with pytest.raises(RefsimError, match="made from another source") as caught:
        compile_ptx(edited)
    assert caught.value.kind == Kind.MISSING
    assert "pip install" in caught.value.help


def test_bundled_ptx_survives_other_line_ends(tmp_path: Path, without_nvrtc: None) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "ptx").mkdir()
    kept = ROOT / "gpu" / "ptx" / "fp8_quantize.sm_90a.ptx"
    for path, to in ((QUANTIZE, tmp_path / "kernels"), (kept, tmp_path / "ptx")):
        (to / path.name).write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert compile_ptx(tmp_path / "kernels" / QUANTIZE.name) == compile_ptx(QUANTIZE)


def test_bundled_ptx_is_not_taken_for_other_flags(without_nvrtc: None) -> None:
    with pytest.raises(RefsimError) as caught:
        compile_ptx(QUANTIZE, options=("-DX=1",))
    assert caught.value.code == "compiler-missing"


def test_bundled_ptx_has_lines_and_no_paths() -> None:
    for path in (ROOT / "gpu" / "ptx").glob("*.ptx"):
        text = path.read_text()
        files = [line.split('"')[1] for line in text.splitlines() if line.lstrip().startswith(".file")]
        assert f"{path.name.split('.')[0]}.cu" in files
        assert not [name for name in files if name.startswith("/") or ".." in name or ":" in name or "\\" in name]
        assert "\t.loc\t1 " in text


# ---------------------------------------------------------------------------------------------------------------------
# NVRTC


@needs_nvrtc
def test_compiled_ptx_does_not_depend_on_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for name in ("one", "another/place"):
        directory = tmp_path / name
        directory.mkdir(parents=True)
        source = directory / "small.cu"
        source.write_text("namespace { __device__ unsigned hidden[4]; }\n" + SMALL.replace("VALUE", "hidden[0]++"))
        monkeypatch.chdir(directory)
        texts.append(compile.run_nvrtc(*unit_of(source)))
    assert texts[0] == texts[1]
    assert '.file\t1 "small.cu"' in texts[0]


def unit_of(source: Path) -> tuple[kernel_sources.Unit, tuple[str, ...], toolchain.Toolchain]:
    found = toolchain.find_toolchain()
    assert found is not None
    return kernel_sources.read_unit(KernelCode(file=source)), compile.COMPILE_FLAGS, found


@needs_nvrtc
def test_options_headers_and_hashes(tmp_path: Path) -> None:
    source = small(tmp_path, '#include "value.h"\n' + SMALL)
    header = source.parent / "value.h"
    header.write_text('#include "deep/more.h"\n#define VALUE MORE\n')
    (source.parent / "deep").mkdir()
    (source.parent / "deep" / "more.h").write_text("#define MORE 41\n")
    first = compile_ptx(source, "sm_80")
    assert "41;" in first.text
    assert first.flags[-1] == "--gpu-architecture=compute_80"
    (source.parent / "deep" / "more.h").write_text("#ifndef MORE\n#define MORE 42\n#endif\n")
    second = compile_ptx(source, "sm_80")
    assert "42;" in second.text
    assert second.source_sha256 != first.source_sha256
    third = compile_ptx(source, "sm_80", options=("-DMORE=43",))
    assert "43;" in third.text
    assert third.source_sha256 == second.source_sha256
    assert third.sha256 != second.sha256


@needs_nvrtc
def test_cache_answers_a_second_time(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small(tmp_path)
    first = compile_ptx(source, options=("-DVALUE=7",))
    assert cache.cache_size()[0] == 1

    def refuse(*_: object) -> str:
        raise AssertionError("compiled again")

    with monkeypatch.context() as patch:
        patch.setattr(compile, "run_nvrtc", refuse)
        assert compile_ptx(source, options=("-DVALUE=7",)) == first
        with pytest.raises(AssertionError, match="compiled again"):
            compile_ptx(source, options=("-DVALUE=8",))
    (entry,) = (own_cache / "ptx").iterdir()
    entry.write_bytes(entry.read_bytes()[:-1])
    assert compile_ptx(source, options=("-DVALUE=7",)) == first, "a damaged entry is made anew"
    assert cache.clear_cache() == 1
    assert cache.cache_size() == (0, 0)


@needs_nvrtc
def test_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path, own_cache: Path) -> None:
    own_cache.write_text("a file where the directory should be")
    assert compile_ptx(small(tmp_path), options=("-DVALUE=7",)).origin == "nvrtc"


@needs_nvrtc
@pytest.mark.ci("tests/device/test_headers.py includes them in every run")
def test_headers_of_cooperative_groups_are_found(tmp_path: Path) -> None:
    """They include one another in quotes, which are looked for in the folders that are given and nowhere else."""
    source = tmp_path / "groups.cu"
    source.write_text(
        "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\n#include <cooperative_groups/scan.h>\n"
        'extern "C" __global__ void meet() { cooperative_groups::this_grid().sync(); }\n'
    )
    text = compile_ptx(source).text
    assert "%envreg2" in text
    assert str(tmp_path) not in text
    assert "site-packages" not in text


@needs_nvrtc
def test_compile_error_shows_the_log(tmp_path: Path) -> None:
    source = small(tmp_path, 'extern "C" __global__ void broken() { int x = missing; }\n')
    with pytest.raises(RefsimError) as caught:
        compile_ptx(source)
    assert caught.value.code == "compile-error"
    assert 'small.cu(1): error: identifier "missing" is undefined' in caught.value.where
    assert caught.value.kind == Kind.UNREADABLE


@needs_nvrtc
@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("#include <vector>", "<vector> is of the host: keep the kernel in a file without it, or use compiler="),
        ("#include <torch/extension.h>", "<torch/extension.h> is of the host"),
        ("#include <mine.h>", "headers of yours: include=(folder,), or [tool.refsim] include"),
        ("int main() { return 0; }", "code of the host (main, <<<>>>, allocation) is not for NVRTC"),
        ("__device__ uint32_t word;", "uint32_t is declared in <stdint.h>: #include <stdint.h>"),
        ("__device__ float most = FLT_MAX;", "FLT_MAX is declared in <float.h>"),
        ("__device__ __half x;", "__half is declared in <cuda_fp16.h>"),
        ("__device__ int x = missing;", ""),
    ],
)
def test_what_nvrtc_lacks_has_a_way_out(tmp_path: Path, text: str, help: str) -> None:
    with pytest.raises(RefsimError) as caught:
        compile_ptx(small(tmp_path, f"{text}\n"))
    assert caught.value.help.startswith(help)
    assert bool(caught.value.help) == bool(help)


@needs_nvrtc
def test_two_headers_of_one_name_are_refused(tmp_path: Path) -> None:
    source = small(tmp_path, '#include "a/a.h"\n#include "name.h"\n')
    (source.parent / "a").mkdir()
    (source.parent / "a" / "a.h").write_text('#include "name.h"\n')
    (source.parent / "a" / "name.h").write_text("// one\n")
    (source.parent / "name.h").write_text("// another\n")
    with pytest.raises(RefsimError, match="two files are included as"):
        compile_ptx(source)


@needs_nvrtc
def test_header_under_two_names_is_one_header(tmp_path: Path) -> None:
    """From the folder above and from beside itself, as nvcc takes it: `#pragma once` and the hash know one file."""
    parts = tmp_path / "kernels" / "parts"
    parts.mkdir(parents=True)
    (parts / "value.h").write_text("#pragma once\nstruct Value { unsigned of; };\n")
    (parts / "above.h").write_text('#pragma once\n#include "value.h"\nusing Above = Value;\n')
    includes = [f'#include "{name}"\n' for name in ("parts/value.h", "parts/above.h", "parts/../parts/value.h")]
    body = 'extern "C" __global__ void store(Above* out) { out->of = 44; }\n'
    for order in itertools.permutations(includes):
        first = compile_ptx(small(tmp_path, "".join(order) + body))
        assert "44;" in first.text
    (parts / "value.h").write_text("#pragma once\nstruct Value { float of; };\n")
    second = compile_ptx(tmp_path / "kernels" / "small.cu")
    assert second.source_sha256 != first.source_sha256
    assert "1110441984;" in second.text, "44 as a float"


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes that need no compiler


def test_a_source_is_a_regular_file_of_bounded_size(tmp_path: Path) -> None:
    pipe, big, binary = tmp_path / "pipe.cu", tmp_path / "big.cu", tmp_path / "binary.cu"
    os.mkfifo(pipe)
    binary.write_bytes(b"\xff\xfe\x00")
    with big.open("wb") as stream:
        stream.truncate(1 << 40)
    (tmp_path / "includes.cu").write_text('#include "big.cu"\n')
    wrong = {
        pipe: "not-a-file",
        tmp_path: "not-a-file",
        Path("/dev/zero"): "not-a-file",
        big: "too-large",
        tmp_path / "includes.cu": "too-large",
        binary: "unreadable-file",
        tmp_path / ("x" * 300): "unreadable-file",
    }
    for path, code in wrong.items():
        with pytest.raises(RefsimError) as caught:
            compile_ptx(path)
        assert (caught.value.code, caught.value.kind) == (code, Kind.UNREADABLE)


@pytest.mark.parametrize(
    ("source", "target", "options", "code", "exit_code"),
    [
        (QUANTIZE, "sm_91", (), "unknown-target", Kind.USAGE.value),
        (QUANTIZE, "sm_90a", "-DX", "bad-value", Kind.USAGE.value),
        (ROOT / "gpu" / "kernels" / "absent.cu", "sm_90a", (), "unreadable-file", Kind.UNREADABLE.value),
    ],
)
def test_user_mistakes_are_named(
    source: Path, target: str, options: tuple[str, ...], code: str, exit_code: int
) -> None:
    with pytest.raises(RefsimError) as caught:
        compile_ptx(source, target, options)
    assert (caught.value.code, caught.value.exit_code) == (code, exit_code)


def test_missing_assembler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembling, "assembler_for", lambda text: None)
    monkeypatch.setattr(assembling, "assemblers", lambda: ())
    with pytest.raises(RefsimError) as caught:
        assemble("", "sm_90a")
    assert (caught.value.code, caught.value.kind) == ("assembler-missing", Kind.MISSING)
    assert "nvidia-cuda-nvcc" in caught.value.help


def test_assemble_of_a_bare_text_needs_a_target() -> None:
    with pytest.raises(RefsimError) as caught:
        assemble(".version 9.0\n")
    assert caught.value.code == "missing-argument"


# ---------------------------------------------------------------------------------------------------------------------
# ptxas


@needs_ptxas
@pytest.mark.parametrize("target", ASSEMBLED)
def test_assembled_cubin_is_an_elf_of_that_ptx(target: str, without_nvrtc: None) -> None:
    ptx: CompiledPtx = compile_ptx(QUANTIZE, target)
    cubin = assemble(ptx)
    assert cubin.image.startswith(b"\x7fELF")
    assert cubin.ptx_sha256 == ptx.sha256
    assert cubin.target == target
    assert cubin.assembler == compile.assembler_version()
    assert cubin.assembler.startswith("ptxas 13.")
    assert cache.clear_cache() == 1
    assert assemble(ptx.text, target) == cubin, "assembled twice, the image is the same"


@needs_ptxas
def test_assemble_error_shows_the_log() -> None:
    with pytest.raises(RefsimError) as caught:
        assemble(".version 9.0\n.target sm_90a\n.address_size 64\n.entry f() { bogus.u32 1; }\n", "sm_90a")
    assert caught.value.code == "compile-error"
    assert "bogus" in caught.value.where


@pytest.mark.parametrize("line", ["", "[]", "{", "7", '{"flags": 3}', "9" * 5000, "[" * 100_000])
def test_bundled_text_with_a_damaged_first_line_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(compile, "find_toolchain", lambda number=0: None)
    for folder in ("kernels", "ptx"):
        (tmp_path / folder).mkdir()
    (tmp_path / "kernels" / "k.cu").write_text("// nothing\n")
    (tmp_path / "ptx" / "k.sm_90a.ptx").write_bytes(f"// bundled {line}\n\xff".encode("latin-1"))
    with pytest.raises(RefsimError, match="compiler-missing"):
        compile.compile_ptx(tmp_path / "kernels" / "k.cu")


@pytest.mark.parametrize("option", ["--std=c++20", "-std=c++20"])
def test_a_standard_of_cxx_among_the_options_replaces_the_fixed_one(option: str) -> None:
    source = 'template <class T> concept Any = true;\nextern "C" __global__ void k(__int128* y) { *y = 1; }\n'
    made = compile.compiled(KernelCode(source=source, options=(option, "--device-int128")))
    assert [flag for flag in made.flags if "std" in flag] == [option]
