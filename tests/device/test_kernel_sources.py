"""The files that a kernel is written in: its headers beside it, in its folders, in those of its project; nothing else."""

from pathlib import Path

from refsim.device.kernel_sources import read_unit, source_files
from refsim.kernel_code import KernelCode


def names(code: KernelCode) -> list[str]:
    return sorted(file.name for file in source_files(code))


def test_headers_of_headers_are_found_and_those_of_cuda_are_not(tmp_path: Path):
    (tmp_path / "k.cu").write_text('#include "a.cuh"\n#include <cuda_fp8.h>\n#include "gone.cuh"\n')
    (tmp_path / "a.cuh").write_text('#include "sub/b.cuh"\n#include "a.cuh"\n#ifdef X\n#include <wide/c.cuh>\n#endif\n')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b.cuh").write_text('#include "d.cuh"\n#include "../a.cuh"\n')
    (tmp_path / "sub/d.cuh").write_text("")
    (tmp_path / "include/wide").mkdir(parents=True)
    (tmp_path / "include/wide/c.cuh").write_text("")
    code = KernelCode(file=tmp_path / "k.cu")
    assert names(code) == ["a.cuh", "b.cuh", "d.cuh", "k.cu"]
    assert "c.cuh" in names(KernelCode(file=tmp_path / "k.cu", include=(tmp_path / "include",)))
    (tmp_path / "pyproject.toml").write_text('[tool.refsim]\ninclude = ["include"]\n')
    assert "c.cuh" in names(code)


def test_what_cannot_be_read_is_left_out_and_nothing_is_raised(tmp_path: Path):
    (tmp_path / "k.cu").write_text(f'#include "{"a" * 300}.cuh"\n#include "\0"\n#include NAMED\n')
    assert names(KernelCode(file=tmp_path / "k.cu")) == ["k.cu"]
    (tmp_path / "k.cu").write_bytes(b'#include "a.cuh"\n\xff')
    assert names(KernelCode(file=tmp_path / "k.cu")) == ["k.cu"]
    assert names(KernelCode(file=tmp_path / "absent.cu")) == ["absent.cu"]
    (tmp_path / "pyproject.toml").write_text("[tool")
    assert names(KernelCode(file=tmp_path / "k.cu")) == ["k.cu"]


def test_a_name_that_is_no_path_is_a_header_that_is_not_there(tmp_path: Path):
    (tmp_path / "k.cu").write_text(f'#include "{"a" * 300}.cuh"\n#include <{"b" * 300}>\n#include "\0"\n')
    assert read_unit(KernelCode(file=tmp_path / "k.cu"), [tmp_path]).headers == ()


def test_texts_and_functions_have_no_file_but_their_headers(tmp_path: Path):
    (tmp_path / "a.cuh").write_text("")
    assert names(KernelCode(source='#include <a.cuh>\n#include "b.cuh"\n', include=(tmp_path,))) == ["a.cuh"]
    assert names(KernelCode(ptx=".version 9.0")) == []
    assert names(KernelCode(call=print)) == []
    assert names(KernelCode(file=tmp_path / "k.ptx")) == ["k.ptx"]
