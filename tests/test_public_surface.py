"""What `dir` and a prompt show, and that each public docstring says errors, source and a number that holds."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import refsim
from refsim import causes, ptx, scaling, testing
from refsim.device.compile import assemble, compiled
from refsim.errors import Kind
from refsim.kernel_code import KernelCode
from refsim.render.cards import Card
from refsim.testing.campaign import run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

MODULES = (
    "refsim",
    "refsim.conversions",
    "refsim.formats",
    "refsim.scaling",
    "refsim.numerics",
    "refsim.layouts",
    "refsim.compare",
    "refsim.causes",
    "refsim.files",
    "refsim.oracles",
    "refsim.oracles.fp8_quantize",
    "refsim.kernels",
    "refsim.ptx",
    "refsim.device",
    "refsim.testing",
    "refsim.testing.adapters",
)
PROPERTIES = (
    "refsim.testing.kinds",
    "refsim.testing.laws",
    "refsim.testing.matrices",
    "refsim.testing.recipes",
    "refsim.testing.steps",
    "refsim.testing.strategies",
)
"""What a suite writes its own properties with: dir shows it, as of the others."""
NO_NUMBER = {
    "load": "needs a file",
    "load_all": "needs a file",
    "save": "writes a file",
    "save_all": "writes a file",
    "find_kernels": "runs files",
    "replay_case": "runs a file",
    "run_campaign": "runs a kernel",
    "explain_problem": "runs a kernel",
    "stretch_named": "needs PTX",
    "from_triton": "needs Triton",
    "from_numba": "needs numba-cuda",
    "from_cute": "needs CuTe DSL",
    "parameter_dtype": "needs PTX",
}


def public() -> Iterator[tuple[str, str, Any]]:
    for module in MODULES:
        found = importlib.import_module(module)
        yield from ((module, name, getattr(found, name)) for name in found.__all__)


FUNCTIONS = {f"{module}.{name}": thing for module, name, thing in public() if inspect.isfunction(thing)}


@pytest.mark.parametrize("name", [*MODULES, *PROPERTIES])
def test_dir_shows_what_is_public_and_nothing_else(name) -> None:
    module = importlib.import_module(name)
    assert dir(module) == sorted(module.__all__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_docstring_says_errors_source_and_a_number_that_holds(name) -> None:
    said = " ".join((inspect.getdoc(FUNCTIONS[name]) or "").split())
    assert "Raises" in said, f"{name}: which errors"
    assert "Source:" in said, f"{name}: which source"
    found = list(claims(FUNCTIONS[name].__name__, said))
    assert found or FUNCTIONS[name].__name__ in NO_NUMBER, f"{name}: no worked number"
    for expression, wanted in found:
        got = evaluated(FUNCTIONS[name], expression)
        assert same(got, evaluated(FUNCTIONS[name], wanted)), f"{name}: {expression} is {got!r}"


def claims(name: str, said: str) -> Iterator[tuple[str, str]]:
    """The calls in a docstring of which it says what they are: `encode(464, "e4m3") is 0x7e`."""
    for start in (match.start() for match in re.finditer(rf"(?<![\w.]){name}\(|len\({name}\(", said)):
        for end in (match.start() for match in re.finditer(r" is ", said[start:])):
            expression = said[start : start + end]
            if not parses(expression):
                continue
            rest = said[start + end + 4 :]
            stops = [match.start() for match in re.finditer(r"(?:[.,;:)]? |\.?$)", rest)]
            fitting = [rest[:stop] for stop in stops if is_literal(rest[:stop])]
            if fitting:
                yield expression, max(fitting, key=len)
            break


def parses(text: str) -> bool:
    try:
        return isinstance(ast.parse(text, mode="eval").body, ast.Call | ast.Subscript | ast.Attribute)
    except SyntaxError:
        return False


def is_literal(text: str) -> bool:
    """Numbers, texts, truth values, and lists and sums of these."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    allowed = (
        ast.Expression,
        ast.Constant,
        ast.List,
        ast.Tuple,
        ast.UnaryOp,
        ast.USub,
        ast.BinOp,
        ast.Sub,
        ast.Pow,
        ast.Load,
    )
    is_bare_tuple = isinstance(tree.body, ast.Tuple) and not text.startswith("(")  # "[0x4360], 224"
    return bool(text) and not is_bare_tuple and all(isinstance(node, allowed) for node in ast.walk(tree))


def evaluated(function: Any, text: str) -> Any:
    names: dict[str, Any] = {"np": np, "RefsimError": refsim.RefsimError, "Kind": Kind}
    for _, name, thing in public():
        names.setdefault(name, thing)
    names[function.__name__] = function
    return eval(text, names)


def same(got: Any, wanted: Any) -> bool:
    if isinstance(got, np.ndarray) or isinstance(wanted, list):
        return np.shape(got) == np.shape(wanted) and bool(np.all(np.asarray(got) == np.asarray(wanted)))
    return bool(got == wanted)


def test_a_wrong_number_would_be_seen() -> None:
    [(expression, wanted)] = claims("encode", 'Rounded once. encode(464, "e4m3") is 0x7d: half way. Raises nothing.')
    assert not same(evaluated(refsim.encode, expression), evaluated(refsim.encode, wanted))
    [(expression, wanted)] = claims("encode", 'encode([1.0, 464], "e4m3") is [0x38, 0x7e], as it should be.')
    assert same(evaluated(refsim.encode, expression), evaluated(refsim.encode, wanted))


def things() -> Iterator[Any]:
    program = ptx.load(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\nret;\n}\n")
    yield from refsim.FORMATS
    yield from refsim.numerics.PROFILES
    yield from (refsim.layouts.fragment(name) for name in refsim.layouts.fragments()[::97])
    yield from (*refsim.layouts.SCALE_LAYOUTS, refsim.layouts.swizzle("128B"), refsim.layouts.descriptor("wgmma-smem"))
    yield refsim.layouts.tensor_map("uint8", (64, 64), (32, 32))
    yield refsim.layouts.im2col_map("uint8", (64, 9, 2), 16, 64, lower=(-1,), upper=(-1,))
    yield from refsim.conversions.CONVERSIONS.values()
    yield refsim.compare.bits(np.uint8([1, 2]), np.uint8([1, 3]), "e4m3")
    yield load_kernel_file(bundled_kernels("linear_bindings.py")).LINEAR
    yield refsim.device.open("sim")
    yield program
    yield program.launch("k", 1, 32, [np.zeros(1, np.uint8)])
    x = np.float32([[1, 2]] * 2)
    why = causes.ProductOperands(a=x.view(np.uint8), b=x.view(np.uint8), a_format="e4m3", b_format="e4m3")
    yield from (why, causes.explain_diff(np.zeros((2, 2), np.float32), operands=why, seconds=0.1))
    yield causes.explain_diff(x.T.copy(), x, seconds=0.1)
    yield from (causes.RowOperands(function="softmax", x=x), causes.AttentionOperands(q=x, k=x, v=x, causal=True))
    yield from (causes.IntegerOperands(a=x, b=x), causes.QuantizedFrom(x=x, to="mxfp8", recipe="floor"))
    yield causes.WeightOperands(
        a=x, b=x, b_format="u4", b_scale=x, b_zero=8, target="sm_100a", unit="tcgen05.f16", k=16
    )
    yield from (scaling.quantize(x), scaling.scale_kind("e8m0"), refsim.oracles.CUBLASLT_REGIONS[0])
    yield from (testing.Bounded(x, x), ptx.WarpTrace(program.code("k"), warp=0))
    yield ptx.load(program.text + "".join(f".entry {'x' * 300}{n}() {{ ret; }}\n" for n in range(9)))
    yield ptx.load(program.text.replace("entry k", f"entry {'k' * 300}"))
    yield refsim.layouts.tile("K", "128B", 2, (16, 64))
    yield refsim.layouts.bank_conflicts(np.arange(32) * 128, 4)
    source = KernelCode(source="__global__ void k(float* x) { x[0] = 1.0f; }\n" + "// long\n" * 999, defines={"N": 4})
    made = compiled(source, "sm_80")
    yield from (source, made, assemble(made))
    with refsim.device.open("sim").launcher(source) as launcher:
        yield launcher
    amax = load_kernel_file(bundled_kernels("bindings.py")).FP8_AMAX
    yield run_campaign(replace(amax, corpus=amax.corpus[:1]), refsim.device.open("sim"), cases=1)


def test_a_prompt_shows_a_line_and_a_notebook_a_table() -> None:
    shown = list(things())
    for thing in shown:
        assert isinstance(thing, Card)
        line = repr(thing)
        assert line.startswith(f"<{type(thing).__name__} ")
        assert "\n" not in line
        assert len(line) <= 120, line
        html = thing._repr_html_()
        assert html.startswith(("<table", "<div"))
    of_format = refsim.E4M3._repr_html_()
    assert repr(refsim.E4M3) == "<Format e4m3: 8 bits>"
    assert "448 (0x7e)" in of_format
    assert len({repr(thing) for thing in shown if isinstance(thing, refsim.Format)}) == len(refsim.FORMATS)
