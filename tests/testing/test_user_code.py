"""What goes wrong in a kernel's own Python code is its author's error, and never a kernel that agrees."""

import json
import sys
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import pytest

from refsim.bundled import PACKAGE, PACKAGES
from refsim.errors import Kind, RefsimError
from refsim.formats import format_named
from refsim.testing import Bounded, Promise, find_kernels, laws, run_campaign
from refsim.testing import strategies as rst
from refsim.testing.recipes import Tensor, spelled
from refsim.testing.runs import examine
from refsim.testing.user_code import LONGEST, is_foreign, place, said, shortened

PROBLEM = Tensor(40, "bf16", "gaussian")


def error_of(kernel, device, **options):
    with pytest.raises(RefsimError) as caught:
        run_campaign(kernel, device, **options)
    assert caught.value.exit_code == 2, str(caught.value)
    return caught.value


def raises(error):
    def function(*_):
        raise error

    return function


ENDS = [KeyError("y"), ValueError("a shape"), SystemExit(0), SystemExit(), GeneratorExit(), BaseException("odd")]


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("function", ["run", "oracle", "outputs"])
def test_what_a_function_raises_is_its_own(halve_kernel, fake_device, function, error):
    found = error_of(replace(halve_kernel, **{function: raises(error)}), fake_device())
    assert found.code == "user-code-raised"
    assert found.what.startswith(f"{function} of kernel halve ")
    assert "Tensor(n=0, format='bf16')" in found.what
    assert "test_user_code.py:" in found.where
    assert found.help


def of_refsim(file, error):
    """Return a function of a file in refsim that fails in a second function."""
    names = {"error": error}
    exec(compile("def inner(): raise error\ndef entry(*_): inner()", str(PACKAGE / file), "exec"), names)
    return names["entry"]


@pytest.mark.parametrize(
    ("file", "error"),
    [("ptx/checks/a.py", KeyError(2)), ("ptx/a.py", AssertionError()), ("device/sim.py", IndexError())],
)
@pytest.mark.parametrize("function", ["run", "oracle"])
def test_a_bug_of_refsim_is_no_error_of_the_users_code(halve_kernel, fake_device, function, file, error):
    entry = of_refsim(file, error)
    with pytest.raises(type(error)) as caught:
        run_campaign(replace(halve_kernel, **{function: lambda *_: entry()}), fake_device())
    assert caught.value is error


@pytest.mark.parametrize(
    ("file", "error"),
    [("device/sim.py", TypeError()), ("ptx/a.py", MemoryError()), ("_bundled/gpu/bindings.py", KeyError(2))],
)
def test_an_argument_that_refsim_cannot_use_is_the_users(halve_kernel, fake_device, file, error):
    entry = of_refsim(file, error)
    assert error_of(replace(halve_kernel, run=lambda *_: entry()), fake_device()).code == "user-code-raised"


def test_a_bug_of_refsim_in_one_kernel_leaves_the_verdicts_of_the_others(refsim_cli, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("refsim.device.sim.SimLauncher.launch", of_refsim("ptx/checks/a.py", KeyError(2)))
    for name in ("launches", "returns"):
        text = ENDING.replace("ENDS", "''").replace('"k"', f'"{name}"')
        text = text.replace('ends("run")', 'launcher.launch("k", 1, 32, [])') if name == "launches" else text
        (tmp_path / f"{name}.py").write_text(text)
    files = [f"--kernels={tmp_path / name}.py" for name in ("launches", "returns")]
    assert refsim_cli("verify", *files, "--cases", "1") == 70
    printed = capsys.readouterr().out
    assert "[internal-error] refsim raised KeyError: 2" in printed
    assert "[nothing-launched]" in printed


def test_a_wrong_use_of_refsim_in_run_is_said_with_its_line(halve_kernel, fake_device):
    found = error_of(replace(halve_kernel, run=lambda *_: Tensor(np.int64(3), "bf16").codes()), fake_device())
    assert (found.code, found.where.partition(", ")[0]) == ("bad-recipe", "run of kernel halve")
    assert "test_user_code.py:" in found.where


def test_an_oracle_may_overflow_in_silence(halve_kernel, fake_device):
    """A warning is an error in these tests, as in many projects."""
    right = halve_kernel.oracle

    def oracle(problem):
        np.full(3, 3e38, np.float32) * np.float32(10) - np.float32(np.inf)
        return right(problem)

    assert run_campaign(replace(halve_kernel, oracle=oracle), fake_device(), cases=3)


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_what_draws_problems_is_named_too(halve_kernel, fake_device, error):
    found = error_of(replace(halve_kernel, problem=rst.sizes().map(raises(error))), fake_device())
    assert (found.code, found.what.partition(" r")[0].partition(" e")[0]) == (
        "user-code-raised",
        "problem of kernel halve",
    )


def test_a_recipe_that_ends_the_program_verifies_nothing(halve_kernel, fake_device):
    @dataclass(frozen=True)
    class Ends:
        n: int

        def __post_init__(self):
            sys.exit(0)

    found = error_of(replace(halve_kernel, recipe=Ends, corpus=(), problem=rst.sizes().map(Ends)), fake_device())
    assert "sys.exit(0)" in found.what


def test_what_is_no_strategy_is_refused_where_it_is_declared(halve_kernel):
    with pytest.raises(RefsimError, match="must be a Hypothesis strategy"):
        replace(halve_kernel, problem=[Tensor(1, "bf16")])


def test_a_kernel_file_that_ends_the_program_is_unreadable(tmp_path):
    file = tmp_path / "kernels.py"
    for text in ("import sys\nsys.exit(0)\n", "raise SystemExit\n", "raise BaseException('odd')\n"):
        file.write_text(text)
        with pytest.raises(RefsimError, match="user-code-raised") as caught:
            find_kernels([file])
        assert caught.value.kind is Kind.UNREADABLE


@pytest.mark.parametrize("end", ["in the file", "in the oracle", "in run", "in a recipe", "in a function of the file"])
def test_verify_is_not_green_when_code_ends_the_program(refsim_cli, tmp_path, capsys, end):
    exits = {"in the file": "file", "in the oracle": "oracle", "in run": "run", "in a recipe": "recipe"}.get(
        end, "problem"
    )
    file = tmp_path / "kernels.py"
    file.write_text(ENDING.replace("ENDS", repr(exits)))
    assert refsim_cli("verify", "--kernels", str(file)) in (2, 3)
    assert "[user-code-raised]" in "".join(capsys.readouterr())


@pytest.fixture
def refsim_cli(tmp_path, monkeypatch, capsys):
    from refsim.cli import main

    monkeypatch.chdir(tmp_path)
    return lambda *arguments: main(list(arguments))


ENDING = """
import json
import sys
from dataclasses import dataclass

import numpy as np

from refsim.testing import Kernel, strategies

CUDA = 'extern "C" __global__ void k() {}'

def ends(where):
    if ENDS == where:
        sys.exit(0)

@dataclass(frozen=True)
class Size:
    n: int = 1

    def __post_init__(self):
        ends("recipe")

def run(launcher, problem):
    ends("run")
    return {"y": np.zeros(1, np.uint8)}

def oracle(problem):
    ends("oracle")
    return {"y": np.zeros(1, np.uint8)}

def size(n):
    ends("problem")
    return Size(n)

ends("file")
KERNELS = (Kernel("k", oracle, strategies.sizes().map(size), run, {"y": ""}, recipe=Size, source=CUDA),)
"""


def test_an_assertion_of_run_is_a_check_that_the_kernel_fails(halve_kernel, fake_device):
    def run(launcher, problem):
        wrote = halve_kernel.run(launcher, problem)
        assert problem.n < 9, "the flag is not set"
        return wrote

    verdict = run_campaign(replace(halve_kernel, run=run), fake_device())
    assert (verdict.status, verdict.exit_code, verdict.problem["n"]) == ("fail", 1, 9)
    assert "the flag is not set" in verdict.finding
    found = error_of(replace(halve_kernel, oracle=raises(AssertionError("odd"))), fake_device())
    assert "oracle of kernel halve raised AssertionError: odd" in found.what


def test_errors_of_refsim_in_an_oracle_are_not_faults_of_the_kernel(halve_kernel, fake_device):
    found = error_of(
        replace(halve_kernel, oracle=raises(RefsimError("race", "two threads", kind=Kind.FAULT))), fake_device()
    )
    assert found.where.startswith("oracle of kernel halve")


def test_a_timeout_of_an_oracle_is_no_timeout_of_the_kernel(halve_kernel, fake_device):
    inner = RefsimError("timeout", "the oracle simulates something", kind=Kind.INCONCLUSIVE)
    assert error_of(replace(halve_kernel, oracle=raises(inner)), fake_device()).code == "timeout"


def test_outputs_are_compared_by_value_whatever_their_byte_order(halve_kernel, fake_device):
    right, swapped = halve_kernel.oracle, replace(halve_kernel, oracle=lambda p: {"y": right(p)["y"].astype(">u2")})
    assert examine(swapped, PROBLEM, fake_device()).finding is None
    wrong = replace(halve_kernel, oracle=lambda p: {"y": right(p)["y"].byteswap()})
    assert examine(wrong, PROBLEM, fake_device()).finding is not None


def test_a_mapping_that_fails_as_it_is_read_is_its_authors(halve_kernel, fake_device):
    class Lazy(dict):
        def items(self):
            raise OSError("no such member")

    found = error_of(replace(halve_kernel, oracle=lambda _: Lazy(y=1)), fake_device())
    assert (found.code, "OSError: no such member" in found.what) == ("user-code-raised", True)


def returning(**outputs):
    return lambda *_: outputs


@pytest.mark.parametrize(
    ("label", "returned", "what", "help"),
    [
        ("run", None, "run returns None, not a mapping", 'return {"y": launcher.read(y)}'),
        ("oracle", None, "oracle returns None, not a mapping", 'return {"y": want}'),
        ("oracle", np.zeros(40), "oracle returns a ndarray, not a mapping", 'return {"y"'),
        ("run", {"y": np.zeros(40, np.uint16), "z": 1}, "run returns 'z', declared are 'y'", 'outputs={"z"'),
        ("oracle", {}, "oracle does not return 'y', which is declared", "return every output"),
        ("run", {3: 1}, "run returns 3, declared are 'y'", "declares it"),
        ("oracle", {"y": [1.0] * 40}, "oracle returns a list for 'y', not a NumPy array", "return codes"),
        ("oracle", {"y": 3.0}, "oracle returns a float for 'y', not a NumPy array", "return codes"),
        ("oracle", {"y": None}, "oracle returns None for 'y', not a NumPy array", "return codes"),
        (
            "oracle",
            {"y": np.zeros(3, np.uint16)},
            "run returns 'y' in shape (40,), oracle in shape (3,)",
            "same elements",
        ),
        (
            "oracle",
            {"y": np.zeros((8, 5), np.uint16)},
            "run returns 'y' in shape (40,), oracle in shape (8, 5)",
            "same elements",
        ),
        ("run", {"y": Bounded(np.zeros(40), 0.0)}, "run returns a Bounded for 'y', not a NumPy array", "return codes"),
        ("oracle", {"y": memoryview(b"ab")}, "oracle returns a memoryview for 'y'", "return codes"),
        ("oracle", {"y": np.float32(3)}, "oracle returns a float32 for 'y'", "numpy.asarray"),
        ("oracle", {"y": np.zeros(40, np.float16)}, "float16", 'refsim.encode(values, "bf16")'),
        ("oracle", {"y": np.zeros(40, np.float64)}, "float64", 'refsim.encode(values, "bf16")'),
        ("oracle", {"y": np.zeros(40, np.float32)}, "float32", 'refsim.encode(values, "bf16")'),
        ("oracle", {"y": np.zeros(40, ml_dtypes.float8_e4m3fn)}, "float8_e4m3fn", 'refsim.encode(values, "bf16")'),
        ("oracle", {"y": Bounded(np.zeros(40), 0.0)}, "oracle returns Bounded values for 'y'", "Promise.BOUNDED"),
    ],
)
def test_outputs_that_do_not_fit_the_declaration_are_said(halve_kernel, fake_device, label, returned, what, help):
    device = fake_device()
    with pytest.raises(RefsimError) as caught:
        examine(replace(halve_kernel, **{label: lambda *_: returned}), PROBLEM, device)
    assert caught.value.exit_code == 2
    assert what in caught.value.what
    assert help in caught.value.help
    assert "kernel halve" in caught.value.where


def test_a_buffer_is_read_before_it_is_returned(halve_kernel, fake_device):
    kernel = replace(halve_kernel, run=lambda launcher, _: {"y": launcher.output(40, np.uint16, name="y")})
    with pytest.raises(RefsimError, match=r"run returns a Buffer for 'y'") as caught:
        examine(kernel, PROBLEM, fake_device())
    assert "launcher.read(y)" in caught.value.help


def test_a_promise_of_bounds_needs_bounds(halve_kernel, fake_device):
    kernel = replace(halve_kernel, promise=Promise.BOUNDED("derived"))
    with pytest.raises(RefsimError, match="oracle returns no bounds"):
        examine(kernel, PROBLEM, fake_device())


@pytest.mark.parametrize("outputs", [None, ["y"], {"y": np.uint16}, {"y": 16}])
def test_outputs_are_names_and_formats(halve_kernel, fake_device, outputs):
    with pytest.raises(RefsimError, match="bad-kernel"):
        examine(replace(halve_kernel, outputs=lambda _: outputs), PROBLEM, fake_device())


@pytest.fixture
def wrong(fake_device, right_halve):
    def flips(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        launcher.view(y)[2] ^= 1

    return fake_device(flips, sees_owners=False)


def test_a_failing_verdict_survives_an_owner_that_raises(halve_kernel, wrong):
    for owner in (raises(KeyError("block")), lambda *_: 3, raises(SystemExit(0))):
        kernel = replace(halve_kernel, owner=owner, corpus=(PROBLEM,))
        verdict = run_campaign(kernel, wrong, cases=0)
        assert verdict.exit_code == 1
        assert "owner of kernel halve" in verdict.finding


@pytest.mark.parametrize(
    "suspect",
    [raises(KeyError("z")), raises(SystemExit(0)), returning(y=3), lambda _: None, returning(y=np.zeros(3, np.uint16))],
)
def test_a_failing_verdict_survives_a_suspect_that_is_wrong_itself(halve_kernel, wrong, suspect):
    kernel = replace(halve_kernel, suspects={"odd": suspect, "right": halve_kernel.oracle}, corpus=(PROBLEM,))
    verdict = run_campaign(kernel, wrong, cases=0)
    assert verdict.exit_code == 1
    assert any("suspect 'odd'" in note and note.endswith("left out") for note in verdict.notes)


def test_recipes_may_hold_arrays_though_no_case_of_them_can_be_written(halve_kernel, wrong, tmp_path):
    @dataclass(frozen=True)
    class Holds:
        array: np.ndarray
        n: int = 40
        misalign_bytes: int = 0

        def codes(self):
            return self.array

    kernel = replace(halve_kernel, recipe=Holds, corpus=(Holds(np.arange(40, dtype=np.uint16)),))
    verdict = run_campaign(kernel, wrong, cases=0, failures_dir=tmp_path)
    assert (verdict.exit_code, verdict.replay, verdict.problem) == (1, "", None)
    assert any("this test case cannot be written" in note for note in verdict.notes)
    assert spelled(kernel.corpus[0]).startswith("Holds(array=array(")


def test_laws_say_the_same(halve_kernel, fake_device):
    with pytest.raises(RefsimError, match="user-code-raised"):
        laws.agrees_with_oracle(replace(halve_kernel, oracle=raises(SystemExit(0))), PROBLEM, fake_device())


def test_the_keyboard_still_interrupts(halve_kernel, fake_device):
    with pytest.raises(KeyboardInterrupt):
        run_campaign(replace(halve_kernel, oracle=raises(KeyboardInterrupt())), fake_device())


# ---- in which words --------------------------------------------------------------------------------------------------


def test_a_comparison_that_cannot_be_made_says_of_which_output(halve_kernel, fake_device):
    wrong = replace(halve_kernel, oracle=returning(y=np.zeros(40, np.float64)))
    with pytest.raises(RefsimError) as caught:
        examine(wrong, PROBLEM, fake_device())
    assert caught.value.where == "output 'y' of kernel halve"
    integers = replace(wrong, outputs={"y": ""})
    with pytest.raises(RefsimError) as caught:
        examine(integers, PROBLEM, fake_device())
    assert "encode" not in caught.value.help
    bounded = replace(
        halve_kernel,
        oracle=returning(y=Bounded(np.zeros(3), 0.0)),
        promise=Promise.BOUNDED("derived"),
        corpus=(PROBLEM,),
    )
    with pytest.raises(RefsimError, match=r"run returns 'y' in shape \(40,\), oracle in shape \(3,\)"):
        examine(bounded, PROBLEM, fake_device())


def test_an_error_that_says_where_keeps_its_place(halve_kernel, fake_device):
    own = RefsimError("bad-value", "no such range", where="row 3 of my table")
    assert error_of(replace(halve_kernel, oracle=raises(own)), fake_device()).where == "row 3 of my table"


def test_what_was_raised_is_one_line_of_moderate_length():
    assert said(KeyError()) == "KeyError"
    assert said(ValueError("a\n   b\tc")) == "ValueError: a b c"
    assert said(ValueError("x" * 999)) == f"ValueError: {'x' * 999}"[:LONGEST]


def test_a_problem_is_cut_where_it_is_too_long():
    @dataclass(frozen=True)
    class Named:
        name: str

    fits = "x" * (LONGEST - len(spelled(Named(""))))
    assert shortened(Named(fits)) == spelled(Named(fits))
    assert shortened(Named(fits + "x")) == f"{spelled(Named(fits))[: LONGEST - 3]}..."
    assert shortened(Unspoken()) == "Unspoken"


class Unspoken:
    def __repr__(self) -> str:
        raise KeyError("name")


def inner():
    raise KeyError("y")


def outer():
    inner()


@pytest.mark.parametrize(
    ("function", "where"),
    [
        (outer, "in inner"),
        (lambda: json.loads("{"), "in <lambda>"),
        (lambda: np.linalg.inv(np.zeros((2, 2))), "in <lambda>"),
        (lambda: exec("raise KeyError"), "in <lambda>"),
        (lambda: format_named("e9m9"), "in <lambda>"),
    ],
)
def test_the_place_is_the_last_line_of_the_users_own(function, where):
    with pytest.raises(Exception) as caught:
        function()
    assert place(caught.value).startswith(f"{__file__}:")
    assert place(caught.value).endswith(where)


def test_kernels_that_travel_with_refsim_are_users_and_refsim_is_none():
    assert all(is_foreign(str(folder / "__init__.py")) for folder in PACKAGES)
    assert is_foreign(json.__file__)
    assert is_foreign(np.__file__)
    assert not is_foreign(str(PACKAGE / "_bundled" / "gpu" / "bindings.py"))
    assert not is_foreign(__file__)
