"""Kernels are found by path: the files pyproject.toml names, else the ones that travel with refsim."""

import os
import sys
from types import ModuleType

import pytest

from refsim.errors import Kind, RefsimError
from refsim.testing.kernel_files import bundled_kernels, find_kernels, imported_files, kernel_named, kernel_paths

KERNEL_FILE = """
from refsim.kernels import Kernel
from refsim.testing.recipes import Tensor

KERNELS = (Kernel("{name}", lambda p: dict(y=p.codes()), None, lambda l, p: None, dict(y="bf16"), recipe=Tensor, call=print),)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(KERNEL_FILE.format(name="mine"))
    return tmp_path


def test_a_module_whose_file_is_none_is_not_the_users(project, monkeypatch):
    """torch.ops says that its file is _ops.py, wherever one stands."""
    since = frozenset(sys.modules)
    for name, file in (("not_there", "_ops.py"), ("there", str(project / "mine.py"))):
        module = ModuleType(name)
        module.__file__ = file
        monkeypatch.setitem(sys.modules, name, module)
    assert imported_files(since) == (project / "mine.py",)


def test_table_of_the_project_names_the_files(project):
    (project / "pyproject.toml").write_text('[tool.refsim]\nkernels = ["mine.py"]\n')
    assert kernel_paths() == [project / "mine.py"]
    (kernel,) = find_kernels()
    assert (kernel.name, kernel.declared_in) == ("mine", (project / "mine.py").resolve())


@pytest.mark.parametrize("text", [None, "[project]\nname = 'x'\n", "[tool.refsim]\nkernels = []\n"])
def test_bundled_kernels_stand_in(project, text):
    if text is not None:
        (project / "pyproject.toml").write_text(text)
    names = ("bindings.py", "group_quantize_bindings.py", "linear_bindings.py", "linear_fp8_bindings.py")
    assert kernel_paths() == [bundled_kernels(name) for name in names]
    kernels = [kernel.name for kernel in find_kernels()]
    quantisers = ["fp8_amax", "fp8_quantize", "fp8_dequantize", "fp8_group_quantize", "fp8_block_quantize"]
    assert kernels == [*quantisers, "linear", "linear_fp8_weight"]


def test_missing_bundled_file_is_named():
    with pytest.raises(RefsimError, match="no-such-file"):
        bundled_kernels("nothing.py")


def test_edited_file_is_loaded_again(project):
    import os

    assert kernel_named("mine", ["mine.py"]).name == "mine"
    (project / "mine.py").write_text(KERNEL_FILE.format(name="edited"))
    os.utime(project / "mine.py", ns=(1, 1))
    assert [kernel.name for kernel in find_kernels(["mine.py"])] == ["edited"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "no-kernel-file"),
        ("KERNELS = ()\n", "no-kernels"),
        ("KERNELS = ('a',)\n", "no-kernels"),
        ("x = 1\n", "no-kernels"),
        ("import nowhere_at_all\n", "user-code-raised"),
        ("def (\n", "user-code-raised"),
        (KERNEL_FILE.format(name="mine"), "name-taken"),
    ],
)
def test_unusable_file_is_refused(project, text, code):
    if text is not None:
        (project / "other.py").write_text(text)
    with pytest.raises(RefsimError) as caught:
        find_kernels(["mine.py", "other.py"])
    assert caught.value.code == code


@pytest.mark.parametrize("text", ["[tool.refsim\n", "[tool.refsim]\nkernels = 'mine.py'\n"])
def test_unusable_pyproject_is_refused(project, text):
    (project / "pyproject.toml").write_text(text)
    with pytest.raises(RefsimError, match="bad-file"):
        find_kernels()


def test_unknown_kernel_shows_the_nearest(project):
    with pytest.raises(RefsimError, match="nearest: mine"):
        kernel_named("mien", ["mine.py"])


def test_missing_file_is_named():
    with pytest.raises(RefsimError) as caught:
        find_kernels(["/nowhere/bindings.py"])
    assert caught.value.kind == Kind.UNREADABLE


@pytest.mark.parametrize(
    "text",
    [
        "tool = 3",
        "tool = []",
        "[[tool]]",
        "[tool]\nrefsim = 'x'",
        "[tool]\nrefsim = [1]",
        "[tool.refsim]\nkernels = 3",
        "[tool.refsim]\nkernels = 'a.py'",
        "[tool.refsim]\nkernels = [3]",
        "[tool.refsim]\nkernels = {a = 'b'}",
        f"[tool.refsim]\nkernels = {'9' * 5000}",
        f"[tool.refsim]\nkernels = {'9' * 4000}",
        f"x = {'[' * 5000}",
        "[tool.refsim",
        "\ud800",
    ],
)
def test_a_damaged_pyproject_is_one_error(project, text):
    (project / "pyproject.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(RefsimError) as caught:
        find_kernels()
    assert (caught.value.code, caught.value.kind) == ("bad-file", Kind.UNREADABLE)
    assert len(str(caught.value)) < 600


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_file_is_not_waited_for(project):
    os.mkfifo(project / "pipe.py")
    (project / "zero.py").symlink_to("/dev/zero")
    (project / "loop.py").symlink_to(project / "loop.py")
    for name in ("pipe.py", "zero.py", "loop.py", "", "x" * 5000, "nul\0"):
        with pytest.raises(RefsimError) as caught:
            find_kernels([name])
        assert caught.value.code in ("no-kernel-file", "wrong-type")
    os.mkfifo(project / "pyproject.toml")
    with pytest.raises(RefsimError, match="not-a-file"):
        find_kernels()
