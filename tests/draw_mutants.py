"""Draws single edits of sources at random, before it is known whether a test sees them: `python tests/draw_mutants.py FILE`.

An edit turns one operator, one comparison, one constant or one word of a file into its neighbour: < into <=, + into -, `and`
into `or`, any into all, 3 into 4. Which ones depends on the seed and on the text of the file alone. Texts of errors,
annotations, decorators and strict= of a zip are no candidates. Prints rows for mutants.toml whose tests are still to be named.
"""

import argparse
import ast
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

SEED = "2026-11-23"
COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
OPERATORS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "|"),
    ast.Mod: ("%", "//"),
    ast.FloorDiv: ("//", "%"),
    ast.And: (" and ", " or "),
    ast.Or: (" or ", " and "),
}
WORDS = {"any": "all", "all": "any", "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
Edit = tuple[int, int, str, str]


class Candidates(ast.NodeVisitor):
    """The edits that one file offers: (line, column, what stands there, what comes instead)."""

    def __init__(self, lines: list[str]) -> None:
        self.lines, self.edits = lines, []

    def _between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        if left.end_lineno == right.lineno:
            line = self.lines[right.lineno - 1]
            at = line.find(old, left.end_col_offset, right.col_offset)
            if at >= 0:
                self.edits.append((right.lineno, at, old, new))

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for left, right, kind in zip(sides, sides[1:], node.ops, strict=False):
            self._between(left, right, *COMPARISONS[type(kind)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in OPERATORS:
            self._between(node.left, node.right, *OPERATORS[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, *OPERATORS[type(node.op)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.edits.append((node.lineno, node.col_offset, "not ", ""))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.edits.append((node.lineno, node.col_offset, str(node.value), str(not node.value)))
        elif isinstance(node.value, int) and node.lineno == node.end_lineno:
            old = self.lines[node.lineno - 1][node.col_offset : node.end_col_offset]
            self.edits.append((node.lineno, node.col_offset, old, str(node.value + 1)))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in WORDS and node.end_lineno is not None and node.end_col_offset is not None:
            at = node.end_col_offset - len(node.attr)
            self.edits.append((node.end_lineno, at, node.attr, WORDS[node.attr]))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in WORDS:
            self.edits.append((node.lineno, node.col_offset, node.id, WORDS[node.id]))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for each in (*node.args.defaults, *(x for x in node.args.kw_defaults if x), *node.body):
            self.visit(each)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for each in node.body:
            self.visit(each)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in ("RefsimError", "Literal", "cast"):
            return
        self.visit(node.func)
        for each in (*node.args, *(word.value for word in node.keywords if word.arg != "strict")):
            self.visit(each)

    def visit_Nothing(self, node: ast.AST) -> None:
        """Texts and what is said of types."""

    visit_Raise = visit_JoinedStr = visit_Assert = visit_Import = visit_ImportFrom = visit_Nothing  # noqa: N815


def anchored(text: str, lines: list[str], edit: Edit) -> tuple[str, str] | None:
    """The edit as (old, new): a piece of its line that stands once in the file; None where the line is not alone."""
    number, column, old, new = edit
    line = lines[number - 1]
    first = len(line) - len(line.lstrip())
    if not line.isascii() or text.count(line[first:]) != 1:
        return None
    return line[first:], line[first:column] + new + line[column + len(old) :]


def drawn(path: Path, name: str, count: int, seed: str = SEED) -> Iterator[tuple[str, str]]:
    """`count` edits of a file, as (old, new); fewer where it offers fewer."""
    text = path.read_text("utf-8")
    lines = text.split("\n")
    seen = Candidates(lines)
    for statement in ast.parse(text).body:
        seen.visit(statement)
    edits = [pair for edit in sorted(set(seen.edits)) if (pair := anchored(text, lines, edit)) and pair[0] != pair[1]]
    yield from random.Random(f"{seed} {name}").sample(edits, min(count, len(edits)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=1, help="edits of each file (default 1)")
    parser.add_argument("--seed", default=SEED)
    given = parser.parse_args()
    for file in given.files:
        for number, (old, new) in enumerate(drawn(file, file.as_posix(), given.count, given.seed), 1):
            print(f"[drawn.{file.stem.replace('_', '-')}-{number}]\nfile = {json.dumps(file.as_posix())}")
            print(f"old = {json.dumps(old)}\nnew = {json.dumps(new)}\ntests = []\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
