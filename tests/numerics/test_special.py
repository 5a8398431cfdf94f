"""numerics.approx: every form whose bits are recorded, by its name in PTX, as the simulated instruction has it."""

import numpy as np
import pytest

from refsim import numerics
from refsim.errors import RefsimError
from refsim.numerics.ieee.patterns import KINDS
from refsim.numerics.special import SPECIAL_FORMS
from refsim.ptx.isa.forms import bind, clauses
from refsim.ptx.isa.instances import opcodes

DTYPES = {kind.name: (kind.dtype, kind.unsigned) for kind in KINDS}
BY_NAME = {form.instruction: form for form in SPECIAL_FORMS}


def words(form: str, seed: int) -> np.ndarray:
    dtype, unsigned = DTYPES[BY_NAME[form].format.name]
    drawn = np.random.default_rng(seed).integers(0, 1 << 8 * unsigned.itemsize, 400, dtype=unsigned, endpoint=False)
    return drawn.view(dtype)


def test_every_recorded_instruction_has_a_row() -> None:
    """Of pairs each half is an instruction of one; everything else that a clause calls recorded is here."""
    spelled = {opcode for clause in clauses() if clause.recorded for opcode in opcodes(clause)}
    assert spelled - BY_NAME.keys() == {opcode for opcode in spelled if opcode.endswith("x2")}
    assert BY_NAME.keys() <= spelled


@pytest.mark.parametrize("form", BY_NAME)
def test_rows_return_what_the_simulated_instruction_returns(form: str) -> None:
    operands = [words(form, seed) for seed in range(BY_NAME[form].operands)]
    bound = bind(form)
    want = bound.clause.function(*operands, **bound.keywords)
    found = numerics.approx(form, *operands)
    unsigned = DTYPES[BY_NAME[form].format.name][1]
    assert found.dtype == operands[0].dtype
    assert np.array_equal(found.view(unsigned), want.view(unsigned))


@pytest.mark.parametrize("name", [name for name in BY_NAME if name.endswith("f16")])
def test_an_instruction_on_pairs_is_that_of_one_number_on_its_halves(name: str) -> None:
    halves = words(name, 5)
    bound = bind(f"{name}x2")
    want = bound.clause.function(halves, **bound.keywords)
    assert numerics.approx(f"{name}x2", halves).view(np.uint16).tolist() == want.view(np.uint16).tolist()


@pytest.mark.parametrize("name", BY_NAME)
def test_the_name_says_whether_subnormals_are_flushed(name: str) -> None:
    assert BY_NAME[name].flushes == (".ftz" in name)


def test_operands_broadcast() -> None:
    found = numerics.approx("div.approx.f32", np.float32([[6], [1]]), np.float32([2, 3]))
    assert found.view(np.uint32).tolist() == [[0x40400000, 0x40000000], [0x3F000000, 0x3EAAAAAB]]


@pytest.mark.parametrize(
    ("name", "operands", "code"),
    [
        ("ex2.approx.f33", (np.float32([1]),), "unknown-name"),
        ("ex2", (np.float32([1]),), "ambiguous-name"),
        ("ex2.approx", (np.float32([1]),), "ambiguous-name"),
        ("expf", (np.float32([1]),), "unknown-name"),
        ("ex2.approx.f32x2", (np.float32([1]),), "unknown-name"),
        ("tanh.approx.f16x2", (np.float32([1]),), "bad-dtype"),
        (7, (np.float32([1]),), "unknown-name"),
        ("ex2.approx.f32", (np.float32([1]), np.float32([1])), "operand-count"),
        ("div.full.f32", (np.float32([1]),), "operand-count"),
        ("ex2.approx.f32", (np.float64([1]),), "bad-dtype"),
        ("ex2.approx.f16", (np.float32([1]),), "bad-dtype"),
        ("div.full.f32", (np.float32([1]), np.float64([1])), "bad-dtype"),
        ("div.full.f32", (np.float32([1, 2]), np.float32([1, 2, 3])), "bad-shape"),
        ("ex2.approx.f32", ([[1.0, 2.0], [3.0]],), "bad-shape"),
    ],
)
def test_what_is_none_of_these_is_refused(name: str, operands: tuple[np.ndarray, ...], code: str) -> None:
    with pytest.raises(RefsimError) as caught:
        numerics.approx(name, *operands)
    assert caught.value.code == code
