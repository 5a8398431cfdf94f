"""Element types, methods of accumulation, roundings and kinds of errors are rows: no layer asks for one by its name.

Every file is read as a tree: comparisons (==, !=, in, not in), patterns of `match`, keys of dictionaries, what is looked up
under a constant, and parts of a text that are asked for, written with a name of one of the tables, are counted, and there are
none outside the tables.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import refsim
from refsim.bundled import PACKAGES
from refsim.errors import Kind
from refsim.formats import ELEMENTS
from refsim.numerics.methods import METHODS, SUM_ROUNDINGS

ROOT = Path(refsim.__file__).parent
ELEMENT_NAMES = {row.name for row in ELEMENTS}
METHOD_NAMES = {row.name for row in METHODS}
ROUNDING_NAMES = {row.name for row in SUM_ROUNDINGS}
ALIASES = {
    alias for row in ELEMENTS for alias in row.aliases if alias.startswith(("float4_", "float6_", "float8_", "e4m3"))
}
DISTINCT = ELEMENT_NAMES | ROUNDING_NAMES | ALIASES
"""Names that are no ordinary words: a question that is written with one is seen wherever it stands."""
CODES = {kind.value for kind in Kind}
TABLES = ("formats/", "numerics/methods.py", "errors.py")
OTHER_WORDS = {
    "ptx/": "types of PTX opcodes, registers and constants, in the words of the PTX ISA",
    "testing/suspects/": "parts of PTX opcodes that are edited",
    "reference/": "second definitions share nothing with the first",
    "silicon/second_definition.py": "operands of the second definitions, in their own words",
    "cli/launches.py": "types of scalar arguments on a command line, and their C types",
    "cli/commands/simulate.py": "the PTX type of a register",
    "layouts/descriptors/instructions.py": "kinds of tcgen05.mma, two of which are called like their operands",
    "device/cuda_launcher.py": "the codes of DLPack, some for types of ml_dtypes that no format has",
    "../gpu/probes/layouts_": "parts of PTX opcodes, in files that recordings hold the hash of, and what runs them",
    "../gpu/probes/scalar_semantics.py": "parts of PTX opcodes",
    "../properties/test_isa_": "types of PTX opcodes and registers",
}
"""Where a word that an element type also has means something else."""


def sources() -> dict[str, Path]:
    """The files of refsim by their place in it, and of refsim_run; of the checkout also kernels, probes and laws."""
    beside = [path for room in ("gpu", "properties") for path in sorted((ROOT.parent / room).rglob("*.py"))]
    outer = {f"../{path.relative_to(ROOT.parent).as_posix()}": path for path in beside}
    programs = {path.relative_to(ROOT.parent).as_posix(): path for path in sorted(PACKAGES[1].rglob("*.py"))}
    return {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))} | programs | outer


@cache
def trees() -> dict[str, ast.Module]:
    """Those files, read when a test asks: to read them takes seconds."""
    return {name: ast.parse(path.read_text()) for name, path in sources().items()}


def own() -> dict[str, ast.Module]:
    """Those of refsim itself, and of refsim_run."""
    return {name: tree for name, tree in trees().items() if not name.startswith("../")}


def constants(tree: ast.Module) -> dict[str, ast.expr]:
    """What the module's own names stand for where that is written out: INTEGERS = ("s8", "u8")."""
    return {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Constant | ast.Tuple | ast.List | ast.Set)
    }


def literals(node: ast.AST, known: dict[str, ast.expr]) -> Iterator[object]:
    """The constants that a side of a comparison is written with; `F16.name` is the text "f16"."""
    match node:
        case ast.Name(id=name) if name in known:
            yield from literals(known[name], {})
        case ast.Constant(value=value):
            yield value
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            for part in parts:
                yield from literals(part, known)
        case ast.Attribute(value=ast.Name(id=row), attr="name") if row.isupper():
            yield row.lower()


PARTS = ("startswith", "endswith", "removeprefix", "removesuffix", "get", "pop", "partition", "split", "index", "count")
"""Methods that ask a text for a part of it, or a table for a row."""


def of_a_row(side: ast.AST) -> bool:
    """`row.method`, `row.method.name`, `method`, `row.order`, `c_enters`: what is called by ordinary words."""
    return ast.unparse(side).removesuffix(".name").endswith(("method", "row.order", "profile.order", "c_enters"))


def switches(tree: ast.Module) -> Iterator[tuple[int, object]]:
    """The line and the word of every question that is asked by name."""
    known = constants(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                words = [word for side in sides for word in literals(side, known)]
                asked = {word for word in words if word in DISTINCT}
                if any(of_a_row(side) for side in sides):
                    asked |= {word for word in words if isinstance(word, str)}
                if any(ast.unparse(side).endswith("exit_code") for side in sides):
                    asked |= {word for word in words if word in CODES}
                yield from ((node.lineno, word) for word in asked)
            case ast.MatchValue():
                yield from (
                    (node.lineno, word) for word in literals(node.value, known) if word in DISTINCT | METHOD_NAMES
                )
            case ast.Call(func=ast.Attribute(attr=method), args=[asked, *_]) if method in PARTS:
                yield from ((node.lineno, word) for word in literals(asked, known) if word in DISTINCT)
            case ast.Subscript(value=table, slice=asked) if ast.unparse(table) != "Literal":
                yield from ((node.lineno, word) for word in literals(asked, known) if word in DISTINCT)
            case ast.Call(func=ast.Name(id="dict"), keywords=given):
                yield from ((node.lineno, each.arg) for each in given if each.arg in DISTINCT)
            case ast.Dict():
                keys = {word for key in node.keys if key is not None for word in literals(key, known)}
                yield from ((node.lineno, word) for word in keys & DISTINCT)
            case _:
                pass


def test_no_layer_asks_for_a_row_by_its_name() -> None:
    found = {
        f"{file}:{line}": word
        for file, tree in trees().items()
        if not file.startswith((*TABLES, *OTHER_WORDS))
        for line, word in switches(tree)
    }
    assert found == {}


def test_every_exception_is_one() -> None:
    for name in OTHER_WORDS:
        files = [tree for file, tree in trees().items() if file.startswith(name)]
        assert any(True for tree in files for _ in switches(tree)), name


@pytest.mark.parametrize(
    "line",
    [
        'if name == "f16": pass',
        'if name in ("s8", "u8"): pass',
        'if "e4m3" not in names: pass',
        "if name == F16.name: pass",
        'if row.method == "truncated": pass',
        'if row.method.name != "exact": pass',
        'if row.rounding == "rz-e8m13": pass',
        'if str(row.rounding) in ("rne-f16", "rne-f32"): pass',
        'if row.order == "byte-pairs": pass',
        'if profile.c_enters != "late": pass',
        'NAMES = {"rz-f32": 23}',
        "if error.exit_code == 4: pass",
        'match name:\n    case "bf16": pass',
        'match method:\n    case "fma-chain": pass',
        'BITS = {"f64": 64}',
        "BITS = {E2M1.name: 4}",
        'INTEGERS = ("s8", "u8")\nif name in INTEGERS: pass',
        'if name.startswith("e4m3"): pass',
        'if name.endswith(("f16", "bf16")): pass',
        'stem = name.removesuffix("s32")',
        'bits = BITS["f64"]',
        'bits = BITS.get("e2m1", 4)',
        "BITS = dict(e4m3=8)",
        'if dtype.name == "float8_e5m2": pass',
    ],
)
def test_a_question_by_name_is_seen(line: str) -> None:
    assert len(list(switches(ast.parse(line)))) >= 1


@pytest.mark.parametrize(
    "line",
    [
        "if row is F16: pass",
        "if row.is_integer: pass",
        'if token == "integer": pass',
        "if error.kind is Kind.MISSING: pass",
        "LOSSES = {TRUNCATED: 1}",
        "if row.rounding is RZ_E8M13 and row.order is BYTE_PAIRS: pass",
        "if code == 4: pass",
        'if name.startswith("wgmma."): pass',
        'x = encode(values, "e4m3")',
        "bits = BITS[E4M3]",
        'kernel = Kernel("e4m3")',
        'Kind = Literal["f32", "e8m0"]',
    ],
)
def test_rows_and_other_words_are_left_alone(line: str) -> None:
    assert list(switches(ast.parse(line))) == []


def shared(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names that more than one file defines, with the files."""
    files: dict[str, list[str]] = {}
    for name, file in names:
        files.setdefault(name, []).append(file)
    return {name: held for name, held in files.items() if len(held) > 1}


def classes(trees: Mapping[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """Classes at the top of a file. One Protocol may be called like one class: it is what a room below asks of that class."""
    for file, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                is_asked = any(ast.unparse(base) == "Protocol" for base in node.bases)
                yield f"{node.name} as a protocol" if is_asked else node.name, file


def public_constants(trees: Mapping[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """Constants whose name some file imports from another, wherever one of that name is defined.

    What no other file knows is called after its place there: RULE, COLUMNS, SOURCE.
    """
    imported = {
        alias.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("refsim")
        for alias in node.names
    }
    for file, tree in trees.items():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            names = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
            yield from ((name, file) for name in sorted(names & imported) if name.isupper())


def test_a_class_has_a_name_of_its_own() -> None:
    assert shared(classes(own())) == {}


def test_a_constant_that_others_import_has_a_name_of_its_own() -> None:
    assert shared(public_constants(own())) == {}


def test_names_for_two_things_are_seen() -> None:
    first = ast.parse("class Step: ...\nclass Wire(Protocol): ...\nROWS: tuple = (1,)\nRULE = 'a'")
    second = ast.parse("class Step: ...\nclass Wire: ...\nROWS, MORE = 1, 2\nRULE = 'b'")
    third = ast.parse("from refsim.first import ROWS\nclass Wire(Protocol): ...")
    trees = {"first.py": first, "second.py": second, "third.py": third}
    assert shared(classes(trees)) == {
        "Step": ["first.py", "second.py"],
        "Wire as a protocol": ["first.py", "third.py"],
    }
    assert shared(public_constants(trees)) == {"ROWS": ["first.py", "second.py"]}
