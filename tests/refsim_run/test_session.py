"""The simulated GPU of a process: modules of their own, launches with what was seen of them, refusals by name."""

import json

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.ptx.machine.launch_rules import LaunchRequest
from refsim_run import cupyx
from refsim_run import session as sessions
from refsim_run.records import Fidelity, KernelRecord, Said, TestRecord, add, merged, of_json
from refsim_run.seams import StandInFinder, refuse
from refsim_run.session import GpuSession, Settings, UnsupportedError
from tests.refsim_run.kernels import DOUBLE, OPEN, RACE


def launched(session, text, entry, *args, block=32):
    return session.load(text, "test").launch(LaunchRequest(entry, 1, block, args))


def vector(session, values):
    return np.uint64(session.memory.allocate(4 * len(values), "test", np.asarray(values, np.float32).view(np.uint8)))


def floats(session, address, count):
    return session.memory.read(int(address), 4 * count).view(np.float32).tolist()


def test_a_kernel_runs_and_is_recorded():
    session = GpuSession()
    x, y = vector(session, [1, 2, 3]), np.uint64(session.memory.allocate(12, "test"))
    launched(session, DOUBLE, "double", y, x, np.uint32(3))
    assert floats(session, y, 3) == [2, 4, 6]
    (kernel,) = session.record().kernels
    assert (kernel.name, kernel.package, kernel.launches, kernel.threads, kernel.status) == (
        "double",
        "test",
        1,
        32,
        Fidelity.EXACT,
    )
    assert kernel.shapes == ["1 of 32"]


def test_each_load_has_variables_of_its_own():
    session = GpuSession()
    modules = [session.load(DOUBLE, "test") for _ in range(2)]
    places = [module.variable("factor") for module in modules]
    assert [size for _, size in places] == [4, 4]
    assert places[0] != places[1]
    session.memory.memory.write(places[0][0], np.float32([5]))
    x, y = vector(session, [1.0]), vector(session, [0.0])
    for module, wanted in zip(modules, (5.0, 2.0), strict=True):
        module.launch(LaunchRequest("double", 1, 1, [y, x, np.uint32(1)]))
        assert floats(session, y, 1) == [wanted]
    with pytest.raises(RefsimError, match="unknown-symbol"):
        modules[0].variable("factory")


def test_a_race_is_recorded_and_the_program_goes_on():
    session = GpuSession()
    y = vector(session, [0.0])
    launched(session, RACE, "race", y)
    (kernel,) = session.record().kernels
    assert kernel.status == Fidelity.FINDING
    assert [said.code for said in kernel.findings] == ["race"]
    assert "line" in kernel.findings[0].where
    assert "[race]" in kernel.findings[0].line


def test_a_check_that_is_left_out_finds_nothing():
    session = GpuSession(Settings(without=("race",)))
    launched(session, RACE, "race", vector(session, [0.0]))
    assert session.record().kernels[0].status == Fidelity.EXACT


def test_bits_that_ptxas_may_choose_are_told():
    session = GpuSession()
    launched(session, OPEN, "open", vector(session, [1.0, 2.0]), block=1)
    (kernel,) = session.record().kernels
    assert kernel.status == Fidelity.INEXACT
    assert len(kernel.inexact) == 1
    assert [(test.launches, test.inexact) for test in session.tests.values()] == [(1, 1)]


def test_a_fault_is_a_finding_and_is_raised():
    session = GpuSession()
    with pytest.raises(RefsimError, match="out-of-bounds"):
        launched(session, DOUBLE, "double", np.uint64(8), vector(session, [1.0]), np.uint32(1))
    assert session.record().kernels[0].status == Fidelity.FINDING


def test_an_argument_of_another_size_is_a_finding_and_is_raised():
    session = GpuSession()
    with pytest.raises(RefsimError, match="bad-argument"):
        launched(session, DOUBLE, "double", np.uint64(8), np.uint32(1), np.uint32(1))
    assert session.record().kernels[0].status == Fidelity.FINDING


@pytest.mark.parametrize("image", [b"\x7fELF....", b"\x50\xed\x55\xba", b"", "nothing"])
def test_machine_code_is_refused(image):
    with pytest.raises(RefsimError, match="bad-file"):
        GpuSession().load(image, "test")


def test_what_is_not_simulated_is_counted_by_name():
    session = GpuSession()
    for _ in range(2):
        error = session.unsupported("package.function", "it needs textures")
        assert isinstance(error, AttributeError)
        assert isinstance(error, NotImplementedError)
        assert "package.function is not simulated: it needs textures" in str(error)
    assert session.record().refused == {"package.function": 2}


def test_a_launch_belongs_to_the_test_that_pytest_runs(request):
    session = GpuSession()
    launched(session, RACE, "race", vector(session, [0.0]))
    session.unsupported("package.function")
    (name,) = session.tests
    assert name.endswith(request.node.name)
    assert (session.tests[name].launches, session.tests[name].findings) == (
        1,
        ["[race] race: st.global.u32 at PTX line 9, thread (0, 0, 0) of block (0, 0, 0)"],
    )
    assert session.tests[name].refused == ["package.function"]


def test_records_of_processes_become_one_and_survive_json():
    session = GpuSession()
    launched(session, RACE, "race", vector(session, [0.0]))
    session.unsupported("package.function")
    record = session.record()
    once = of_json(json.loads(json.dumps(record.to_json())))
    assert once == record
    both = merged([once, of_json(record.to_json())], "sm_90a")
    assert both.kernels[0].launches == 2
    assert len(both.kernels[0].findings) == 1
    assert both.refused == {"package.function": 2}
    assert both.allocations == 2


def test_the_gravest_word_is_the_status():
    kernel, said = KernelRecord("k", "test", "sm_90a"), Said("code", "what")
    assert kernel.status == Fidelity.EXACT
    for name, value, wanted in (
        ("assumed", ["line"], Fidelity.ASSUMED),
        ("inexact", ["line"], Fidelity.INEXACT),
        ("refused", [said], Fidelity.REFUSED),
        ("findings", [said], Fidelity.FINDING),
    ):
        setattr(kernel, name, value)
        assert kernel.status == wanted


def test_what_the_program_does_wrong_is_in_the_record(request):
    session = GpuSession(Settings(without=("uninitialised",)))
    address = session.memory.allocate(4, "test")
    session.memory.read(address, 4)
    session.memory.free(address)
    for _ in range(2):
        with pytest.raises(RefsimError, match="bad-address"):
            session.memory.free(address)
    record = of_json(json.loads(json.dumps(session.record().to_json())))
    assert [said.code for said in record.found] == ["bad-address"]
    assert record.warned == []
    both = merged([record, record], "sm_90a")
    assert both.found == record.found
    (test,) = record.tests.values()
    assert test.findings[0].startswith("[bad-address] ")


def test_what_may_be_meant_is_a_warning_and_no_finding_of_the_test():
    session = GpuSession()
    session.memory.read(session.memory.allocate(4, "test"), 4)
    assert [said.code for said in session.warned] == ["uninitialised"]
    assert (session.found, session.tests) == ([], {})


def test_a_launch_that_ends_with_a_fault_is_one_of_the_tests(request):
    session = GpuSession()
    for block, wanted in ((32, "findings"), (2048, "refused")):
        with pytest.raises(RefsimError):
            launched(session, DOUBLE, "double", np.uint64(8), vector(session, [1.0]), np.uint32(1), block=block)
        (test,) = session.tests.values()
        assert getattr(test, wanted)
    assert (test.launches, len(test.findings), test.refused) == (2, 1, ["launch-limit"])


def test_a_module_that_is_looked_for_before_it_is_imported_is_not_refused(monkeypatch):
    monkeypatch.setattr(sessions, "_CURRENT", [GpuSession()])
    assert isinstance(refuse("pycuda", "gl"), UnsupportedError)
    assert not isinstance(refuse("pycuda", "gpuarray"), UnsupportedError)  # from pycuda import gpuarray
    assert sessions.current().refused == {"pycuda.gl": 1}


def test_what_is_said_of_one_place_is_said_once():
    session = GpuSession()
    for _ in range(3):
        launched(session, RACE, "race", vector(session, [0.0]))
    (kernel,) = session.record().kernels
    assert (kernel.launches, len(kernel.findings)) == (3, 1)
    known = [Said("race", "at 1", "line 2")]
    add(
        known,
        [Said("race", "at 3", "line 2"), Said("race", "at 3", "line 3"), Said("size", "8 B"), Said("size", "4 B")],
    )
    assert [(said.what, said.where) for said in known] == [
        ("at 1", "line 2"),
        ("at 3", "line 3"),
        ("8 B", ""),
        ("4 B", ""),
    ]


def test_a_child_by_fork_begins_with_nothing():
    session = GpuSession()
    launched(session, RACE, "race", vector(session, [0.0]))
    session.unsupported("package.function")
    session.answered_by_host("package.sum")
    session.forget()
    record = session.record()
    assert (record.kernels, record.refused, record.tests, record.by_host, record.allocations) == ([], {}, {}, {}, 0)


def test_a_package_that_comes_with_one_is_refused_too(monkeypatch):
    monkeypatch.setattr(sessions, "_CURRENT", [GpuSession()])
    for name in ("cupy_backends", "cupyx.jit"):
        with pytest.raises(ImportError, match=f"module {name} is not simulated"):
            StandInFinder().find_spec(name)
    with pytest.raises(ImportError, match=r"\[unsupported-feature\] cupyx.jit is not simulated"):
        StandInFinder().find_spec("refsim_run.cupyx.jit")  # as `from cupyx import jit` asks
    assert StandInFinder().find_spec("refsim_run.cupyx.profiler", cupyx.__path__) is None
    assert StandInFinder().find_spec("cupyx_of_somebody") is None


def test_the_gravest_word_for_a_test_is_its_own():
    test, other = TestRecord(), TestRecord(launches=1)
    test.ended("passed")
    other.ended("failed", "AssertionError")
    other.ended("skipped")
    test.merge(other)
    test.ended("passed")
    assert (test.outcome, test.said, test.asked) == ("failed", "AssertionError", True)
    assert not TestRecord(outcome="failed").asked


def test_a_nan_is_followed_through_two_launches():
    session = GpuSession(Settings(first_nan=True))
    x, y, z = (vector(session, values) for values in ([1, 3e38, 2], [0, 0, 0], [0, 0, 0]))
    launched(session, DOUBLE, "double", y, x, np.uint32(3))
    launched(session, DOUBLE, "double", z, y, np.uint32(3))  # a kernel is followed until it has some
    module = session.load(DOUBLE.replace("double", "again"), "test")
    module.launch(LaunchRequest("again", 1, 32, (z, y, np.uint32(3))))
    assert floats(session, z, 3) == [4, np.inf, 8]
    first, second = (kernel.nans for kernel in session.record().kernels)
    assert [(row.code, "launch 1 (double)" in row.where) for row in first][:2] == [("output", False), ("born", True)]
    assert "thread (1, 0, 0)" in first[1].where
    assert second[1] == first[1]
    assert [row.code for row in second[2:-1]] == ["passed on"] * len(second[2:-1])
    assert "launch 3 (again)" in second[2].where
    known = of_json(json.loads(json.dumps(session.record().to_json())))
    assert [kernel.nans for kernel in known.kernels] == [first, second]


def test_a_session_follows_no_nan_unless_asked():
    session = GpuSession()
    x, y = vector(session, [3e38]), vector(session, [0])
    launched(session, DOUBLE, "double", y, x, np.uint32(1))
    assert session.record().kernels[0].nans == []


def test_a_nan_that_the_host_wrote_later_is_an_input():
    session = GpuSession(Settings(first_nan=True))
    x, y, z = (vector(session, values) for values in ([3e38], [0], [0]))
    launched(session, DOUBLE, "double", y, x, np.uint32(1))
    session.memory.write(int(y), np.array([np.nan], np.float32).view(np.uint8))
    session.load(DOUBLE.replace("double", "again"), "test").launch(LaunchRequest("again", 1, 32, (z, y, np.uint32(1))))
    second = session.record().kernels[1].nans
    assert second[1].code == "loaded"
    assert "byte 0 of allocation 2 of test" in second[1].what


def test_the_second_run_begins_with_the_memory_of_the_first():
    session = GpuSession(Settings(first_nan=True))
    x = vector(session, [1e38])
    launched(session, DOUBLE, "double", x, x, np.uint32(1))
    assert floats(session, x, 1) == [np.float32(2e38)]
    assert session.record().kernels[0].nans == []
