"""What a unit holds: every header that a compiler may read, so that its hash changes whenever one of them does."""

import itertools
from pathlib import Path

import pytest

from refsim.device.kernel_sources import read_unit
from refsim.errors import RefsimError
from refsim.kernel_code import KernelCode


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_h", ".h").replace("_cu", ".cu")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_header_of_a_folder_is_part_of_the_hash_however_it_is_reached(tmp_path: Path) -> None:
    tree(
        tmp_path,
        k_cu='#include "own.h"\n#include <far/one.h>\n',
        own_h="#include <two.h>\n",
        include__far__one_h='#include "near.h"\n',
        include__far__near_h="",
        include__two_h="",
        include__other_h="",
    )
    folder = tmp_path / "include"

    def hashed() -> str:
        return read_unit(KernelCode(file=tmp_path / "k.cu"), [folder]).sha256

    unit = read_unit(KernelCode(file=tmp_path / "k.cu"), [folder])
    assert [name for name, _ in unit.headers] == ["own.h"]
    assert [name for name, _ in unit.found] == ["far/near.h", "far/one.h", "two.h"]
    before = hashed()
    (folder / "other.h").write_text("changed")
    assert hashed() == before
    seen = {before}
    for name in ("include/far/near.h", "include/far/one.h", "include/two.h", "own.h", "k.cu"):
        (tmp_path / name).write_text((tmp_path / name).read_text() + "// changed\n")
        seen.add(hashed())
    assert len(seen) == 6


def test_where_a_macro_names_a_header_all_of_the_folder_count(tmp_path: Path) -> None:
    tree(tmp_path, include__one_h="#include NAMED\n", include__deep__other_h="a")
    code = KernelCode(source="#include <one.h>\n")
    before = read_unit(code, [tmp_path / "include"])
    assert [name for name, _ in before.found] == ["deep/other.h", "one.h"]
    (tmp_path / "include/deep/other.h").write_text("b")
    assert read_unit(code, [tmp_path / "include"]).sha256 != before.sha256


def test_a_header_below_two_folders_goes_by_its_shorter_name(tmp_path: Path) -> None:
    tree(tmp_path, include__deep__one_h="")
    code = KernelCode(source="#include <one.h>\n#include <deep/one.h>\n")
    for folders in itertools.permutations((tmp_path / "include", tmp_path / "include/deep")):
        assert [name for name, _ in read_unit(code, folders).found] == ["one.h"]


def test_two_files_of_one_name_are_one_where_they_say_the_same(tmp_path: Path) -> None:
    tree(
        tmp_path, k_cu='#include "a/a.h"\n#include "name.h"\n', a__a_h='#include "name.h"\n', name_h="x", a__name_h="x"
    )
    assert dict(read_unit(KernelCode(file=tmp_path / "k.cu")).headers)["name.h"] == "x"
    (tmp_path / "a/name.h").write_text("y")
    with pytest.raises(RefsimError, match="name-taken"):
        read_unit(KernelCode(file=tmp_path / "k.cu"))


def test_line_ends_of_another_system_change_no_hash(tmp_path: Path) -> None:
    text = "int a;\nint b;\n"
    (tmp_path / "k.cu").write_bytes(text.encode())
    (tmp_path / "other").mkdir()
    (tmp_path / "other/k.cu").write_bytes(text.replace("\n", "\r\n").encode())
    one, other = (read_unit(KernelCode(file=folder / "k.cu")) for folder in (tmp_path, tmp_path / "other"))
    assert one == other
    assert read_unit(KernelCode(source=text)) == read_unit(KernelCode(source=text.replace("\n", "\r\n")))


def test_a_folder_that_is_none_is_the_users_error(tmp_path: Path) -> None:
    tree(tmp_path, file_h="")
    for folder in (tmp_path / "file.h", tmp_path / "absent"):
        with pytest.raises(RefsimError, match="no-such-file"):
            read_unit(KernelCode(source="int a;"), [folder])
