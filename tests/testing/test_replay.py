"""A case file is small, checked, and never chooses what is built."""

import json

import pytest

from refsim.errors import Kind, RefsimError
from refsim.testing.recipes import Tensor
from refsim.testing.replay import MAX_CASE_BYTES, load_case, write_case

KERNEL_FILE = """
from refsim.kernels import Kernel
from refsim.testing.recipes import Tensor

KERNELS = (Kernel("copy", lambda p: {}, None, lambda launcher, p: {}, {"y": "bf16"}, recipe=Tensor),)
"""


@pytest.fixture
def case(halve_kernel, tmp_path):
    return write_case(tmp_path, halve_kernel, Tensor(3, "bf16", "ties"), {"name": "fake"}, "3 elements differ")


def test_case_names_its_kernel_file_relative_to_itself(tmp_path):
    from refsim.testing.kernel_files import find_kernels

    (tmp_path / "mine.py").write_text(KERNEL_FILE)
    kernel = find_kernels([tmp_path / "mine.py"])[0]
    path = write_case(tmp_path / "failures", kernel, Tensor(3, "bf16"), {}, "")
    assert json.loads(path.read_text())["kernels"] == "../mine.py"
    moved = tmp_path / "elsewhere"
    (tmp_path / "failures").rename(moved)
    again, problem = load_case(moved / path.name)
    assert (again.name, problem) == ("copy", Tensor(3, "bf16"))


def test_same_problem_has_the_same_name(case, halve_kernel):
    again = write_case(case.parent, halve_kernel, Tensor(3, "bf16", "ties"), {}, "another text")
    assert again == case
    assert list(case.parent.iterdir()) == [case]


def test_interrupted_write_leaves_nothing(halve_kernel, tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("refsim.testing.replay.json.dump", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_case(tmp_path, halve_kernel, Tensor(3, "bf16"), {}, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda record: "not json",
        lambda record: "[" * 100_000,
        lambda record: json.dumps([record]),
        lambda record: json.dumps({**record, "extra": 1}),
        lambda record: json.dumps({key: value for key, value in record.items() if key != "finding"}),
        lambda record: json.dumps({**record, "refsim_case": 2}),
        lambda record: json.dumps({**record, "refsim_case": True}),
        lambda record: json.dumps({**record, "kernel": 7}),
        lambda record: json.dumps({**record, "problem": {"n": float("nan")}}),
        lambda record: json.dumps(record) + " " * MAX_CASE_BYTES,
    ],
)
def test_damaged_case_is_unreadable(case, halve_kernel, change):
    case.write_text(change(json.loads(case.read_text())))
    with pytest.raises(RefsimError) as caught:
        load_case(case, halve_kernel)
    assert (caught.value.code, caught.value.kind) == ("bad-case", Kind.UNREADABLE)


def test_problem_of_another_shape_is_refused(case, halve_kernel):
    record = json.loads(case.read_text())
    case.write_text(json.dumps({**record, "problem": {"n": 1 << 60, "format": "bf16"}}))
    with pytest.raises(RefsimError, match="n must be an integer"):
        load_case(case, halve_kernel)
    case.write_text(json.dumps({**record, "kernel": "double"}))
    with pytest.raises(RefsimError, match="wrong-kernel"):
        load_case(case, halve_kernel)


def test_missing_case_says_so(tmp_path):
    with pytest.raises(RefsimError, match="No such file"):
        load_case(tmp_path / "none.json")
