"""Edits of CUDA text: of each mistake one text without it, with every other line as it was."""

import pytest

from refsim.testing.suspects.limits import SCALED_TO
from refsim.testing.suspects.sources import source_edits, told_apart
from refsim.testing.suspects.suspicion import Instead

AROUND = "#pragma unroll 2 - 1\n%s  // a - 1\nint last;"


def mended(line: str) -> dict[str, list[str]]:
    """What stands in place of a line after each edit, by suspect."""
    found: dict[str, list[str]] = {}
    for edit in source_edits(AROUND % line):
        before, changed, after = edit.text.split("\n")
        assert (before, after, edit.line) == ("#pragma unroll 2 - 1", "int last;", 2)
        assert changed.endswith("  // a - 1")
        found.setdefault(edit.suspect, []).append(changed.removesuffix("  // a - 1"))
    return found


@pytest.mark.parametrize(
    ("line", "suspect", "other"),
    [
        ("for (int i = 0; i < n; ++i)", "off by one", ["for (int i = 0; i <= n; ++i)"]),
        ("for (int i = 9; i >= 0; i -= 2)", "off by one", ["for (int i = 9; i > 0; i -= 2)"]),
        ("while (left<(n))", "off by one", ["while (left<=(n))"]),
        ("y[i - 1] = x[i+1];", "off by one", ["y[i] = x[i+1];", "y[i - 1] = x[i];"]),
        ("f(x - 1.5f, 1, y - 10, a <= b);", "off by one", []),
        (
            "for (auto p = load<int>(q); p < end; p += 2)",
            "off by one",
            ["for (auto p = load<int>(q); p <= end; p += 2)"],
        ),
        ("for (i >>= 1; i << 2; p->x)", "off by one", []),
        ("__fadd_rn(x, y);", "rounding mode", [f"__fadd_{mode}(x, y);" for mode in ("rz", "ru", "rd")]),
        ("my__fadd_rn(x, y.rintf);", "rounding mode", []),
        ("x / 448.0f;", "scale rule", [f"x / {each}f;" for each in SCALED_TO if each != 448]),
        ("x / 1448.0f;", "scale rule", []),
        ("(__hmax(a, b))", "NaN dropped or propagated", ["(__hmax_nan(a, b))"]),
        ("__nv_fp8_e5m2 q;", "format", ["__nv_fp8_e4m3 q;"]),
        ("for (int i = a; i < b; ++i)", "reduction order", ["for (int i = (b) - 1; i >= (a); --i)"]),
        ("for (int i = b - 1; i >= a; i--)", "reduction order", ["for (int i = a; i < (b); ++i)"]),
        ("for (int h = 16; h > 0; h /= 2)", "reduction order", ["for (int h = 1; h <= (16); h <<= 1)"]),
        ("for (int h = 16; h; h >>= 1)", "reduction order", ["for (int h = 1; h <= (16); h <<= 1)"]),
        ("for (int h = 1; h < 32; h *= 2)", "reduction order", ["for (int h = (32) / 2; h > 0; h >>= 1)"]),
        ("for (int h = 1; h <= 16; h <<= 1)", "reduction order", ["for (int h = (16); h > 0; h >>= 1)"]),
        ("for (int i = a; i < b; i += 31)", "reduction order", []),
        (
            "for (int i = t; i < n; i += 32)",
            "reduction order",
            [
                "for (int i = (t) * (((n) + (32) - 1) / (32)); (i) < (n) && (i) < ((t) + 1) * (((n) + (32) - 1) / (32)); ++i)"
            ],
        ),
        (
            "for (int i = t * c; i < min(n, t * c + c); ++i)",
            "reduction order",
            [
                "for (int i = (min(n, t * c + c)) - 1; i >= (t * c); --i)",
                "for (int i = t; i < n; i += blockDim.x)",
                "for (int i = t; i < n; i += warpSize)",
            ],
        ),
        (
            "for (int i = t * c; i < (t + 1) * c && i < n; ++i)",
            "reduction order",
            [
                "for (int i = ((t + 1) * c && i < n) - 1; i >= (t * c); --i)",
                "for (int i = t; i < n; i += blockDim.x)",
                "for (int i = t; i < n; i += warpSize)",
            ],
        ),
    ],
)
def test_a_line_has_these_others(line: str, suspect: str, other: list[str]) -> None:
    assert mended(line).get(suspect, []) == other


@pytest.mark.parametrize("line", ["#define N (n - 1)", "  // n - 1", " * n - 1", "template <int N = M - 1>"])
def test_what_is_no_statement_is_left_alone(line: str) -> None:
    assert [edit for edit in source_edits(f"{line}\nint x;") if edit.line == 1] == []


def test_two_names_of_one_line_may_both_be_wrong() -> None:
    both = mended("f(x / 6.0f, cudaRoundZero);")["scale rule"]
    assert "f(x / 448.0f, cudaRoundPosInf);" in both
    assert len(both) == len(set(both)) == 4 * len(SCALED_TO) - 1
    assert "f(x / 6.0f, cudaRoundZero);" not in both


@pytest.mark.parametrize(
    ("loop", "condition", "other"),
    [
        (
            "for (int h = 1; h < 32; h *= 2)",
            "if (threadIdx.x % (2 * h) == 0) s += 1;",
            ("for (int h = (32) / 2; h > 0; h >>= 1)", "if (threadIdx.x < h) s += 1;"),
        ),
        (
            "for (int h = 16; h > 0; h /= 2) {",
            "if (t < h) s += 1;",
            ("for (int h = 1; h <= (16); h <<= 1) {", "if (t % (2 * h) == 0) s += 1;"),
        ),
    ],
)
def test_a_tree_is_mended_in_both_its_lines(loop: str, condition: str, other: tuple[str, str]) -> None:
    edits = [edit for edit in source_edits(f"int a;\n{loop}\n{condition}\nint b;") if edit.says.startswith("a tree")]
    assert [(edit.suspect, edit.line, edit.text) for edit in edits] == [
        ("reduction order", 2, "\n".join(("int a;", *other, "int b;")))
    ]


@pytest.mark.parametrize(
    ("code", "mended", "wrong", "right"),
    [
        ("for (int i = t; i <= n; ++i)", "for (int i = t; i < n; ++i)", "`i <= n`", "`i < n`"),
        ("y[i] = x[row[i] - 1] * s;", "y[i] = x[row[i]] * s;", "`row[i] - 1`", "row[i]"),
        ("f(x, __NV_NOSAT, t);", "f(x, __NV_SATFINITE, t);", "__NV_NOSAT", "__NV_SATFINITE"),
        ("while (k * (m + 1) >= n[j])", "while (k * (m + 1) > n[j])", "`k * (m + 1) >= n[j]`", "`k * (m + 1) > n[j]`"),
        ("for (;f(i, j) <= g(n, 2);)", "for (;f(i, j) < g(n, 2);)", "`f(i, j) <= g(n, 2)`", "`f(i, j) < g(n, 2)`"),
        (
            "for (i = 0; i < n; ++i)",
            "for (i = n - 1; i >= 0; --i)",
            "`for (i = 0; i < n; ++i)`",
            "`for (i = n - 1; i >= 0; --i)`",
        ),
        ("a" * 90, "b" * 90, "", ""),
    ],
)
def test_two_lines_are_told_apart_by_whole_operands(code, mended, wrong, right):
    assert told_apart(code, mended) == Instead(wrong, right)
