"""Repairs of CUDA text, for mistakes that a compiler spreads over its code: bounds of loops, and their order."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from refsim.testing.suspects.limits import SCALED_TO
from refsim.testing.suspects.suspicion import UNSAID, Instead

_NEIGHBOUR = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_COMPARISON = re.compile(r"(?<=[\w\])])\s*(?<![<>=\-])(<=|>=|<|>)(?![<>=])\s*(?=[\w(\-])")
_TEMPLATE = re.compile(r"\b\w+\s*<[\w\s,:*&]*>")
_LOOP = re.compile(r"\b(?:for|while)\b")
_ONE = re.compile(r"(?<=[\w\])])\s*[-+]\s*1(?![\w.])")
_HEAD = r"for\s*\(\s*(?P<type>[\w\s]+?)\s+(?P<i>\w+)\s*=\s*"
_BY_ONE = r"(?:\+\+(?P=i)|(?P=i)\+\+|(?P=i)\s*\+=\s*1)\s*\)"
_DOWN_BY_ONE = r"(?:--(?P=i)|(?P=i)--|(?P=i)\s*-=\s*1)\s*\)"
_ASCENDING = re.compile(_HEAD + r"(?P<a>[^;]+);\s*(?P=i)\s*<\s*(?P<b>[^;]+);\s*" + _BY_ONE)
_DESCENDING = re.compile(_HEAD + r"(?P<b>[^;]+?)\s*-\s*1\s*;\s*(?P=i)\s*>=\s*(?P<a>[^;]+);\s*" + _DOWN_BY_ONE)
_HALVING = re.compile(
    _HEAD + r"(?P<a>[^;]+);\s*(?P=i)\s*(?:>\s*0|>=\s*1|!=\s*0)?\s*;\s*(?P=i)\s*(?:>>=\s*1|/=\s*2)\s*\)"
)
_DOUBLING = re.compile(_HEAD + r"1\s*;\s*(?P=i)\s*(?P<op><=?)\s*(?P<b>[^;]+);\s*(?P=i)\s*(?:<<=\s*1|\*=\s*2)\s*\)")
_STRIDED = re.compile(
    _HEAD
    + r"(?P<t>[^;]+?)\s*;\s*(?P=i)\s*<\s*(?P<n>[^;]+?)\s*;\s*(?P=i)\s*\+=\s*(?P<step>[\w.]+(?:\s*\*\s*[\w.]+)*)\s*\)"
)
_BLOCKED = re.compile(
    _HEAD
    + r"(?P<t>[\w.]+)\s*\*\s*(?P<c>\w+)\s*;\s*(?P=i)\s*<\s*(?:min\((?P<n>[\w.]+)\s*,[^;]+\)|min\([^;]+,\s*(?P<m>[\w.]+)\)"
    r"|[^;&]*?(?P=c)[^;&]*?&&\s*(?P=i)\s*<\s*(?P<o>[^;]+?))\s*;\s*" + _BY_ONE
)
LEAST_STRIDE = 32  # a warp
_STRIDES = ("blockDim.x", "warpSize")


_INTERLEAVED = re.compile(r"\w+(?:\.x)?\s*%\s*\(\s*2\s*\*\s*(?P<h>\w+)\s*\)\s*==\s*0")
_SEQUENTIAL = re.compile(r"(?P<t>\w+(?:\.x)?)\s*<\s*(?P<h>\w+)\b")
_NAMES = {
    "rounding mode": (
        ("__float2bfloat16_rn", "__float2bfloat16_rz", "__float2bfloat16_ru", "__float2bfloat16_rd"),
        ("__float2half_rn", "__float2half_rz", "__float2half_ru", "__float2half_rd"),
        *(tuple(f"__f{verb}_{mode}" for mode in ("rn", "rz", "ru", "rd")) for verb in ("add", "sub", "mul", "div")),
        *(tuple(f"__{verb}_{mode}" for mode in ("rn", "rz", "ru", "rd")) for verb in ("fmaf", "fsqrt", "frcp")),
        *(tuple(f"__float2{kind}_{mode}" for mode in ("rn", "rz", "ru", "rd")) for kind in ("int", "uint", "ll")),
        ("rintf", "roundf", "floorf", "ceilf", "truncf"),
    ),
    "scale rule": (
        ("cudaRoundPosInf", "cudaRoundZero", "cudaRoundNearest", "cudaRoundMinInf"),
        tuple(f"{value}f" for value in SCALED_TO),
        tuple(f"{value:.0f}.f" for value in SCALED_TO if value.is_integer()),
    ),
    "infinity saturated or propagated": (("__NV_SATFINITE", "__NV_NOSAT"),),
    "NaN dropped or propagated": (("__hmax", "__hmax_nan"), ("__hmin", "__hmin_nan")),
    "format": (("__NV_E4M3", "__NV_E5M2"), ("__nv_fp8_e4m3", "__nv_fp8_e5m2")),
}
"""Families of names that may be confused: CUDA's intrinsics and enumerators, and the largest values of formats."""


@dataclass(frozen=True)
class SourceEdit:
    """A CUDA text with one line fixed, or two lines that belong together; lines are counted from 1."""

    suspect: str
    says: str
    line: int
    text: str
    instead: Instead = UNSAID


def source_edits(text: str) -> Iterator[SourceEdit]:
    """Yield every text with one mistake undone; preprocessor lines and comments are not changed."""
    lines = text.split("\n")
    for suspect, says, rule in _RULES:
        for at, line in enumerate(lines):
            if line.lstrip().startswith(("#", "//", "*", "template")):
                continue
            code, slashes, comment = line.partition("//")
            for mended in rule(code):
                text = "\n".join((*lines[:at], mended + slashes + comment, *lines[at + 1 :]))
                yield SourceEdit(suspect, says, at + 1, text, told_apart(code, mended))
    for at in range(len(lines) - 1):
        if tree := _tree(lines[at], lines[at + 1]):
            says = "a tree adds neighbors first where halves are added, or the other way round"
            text = "\n".join((*lines[:at], *tree, *lines[at + 2 :]))
            yield SourceEdit("reduction order", says, at + 1, text, told_apart(lines[at], tree[0]))


_TOKEN = re.compile(r"[\w.]+|[<>=!&|+\-*/%]+|\s+|.")
_LONGEST = 60


def told_apart(code: str, mended: str) -> Instead:
    """Return the parts in which two lines differ: words, and operators with both operands, `i <= n` and `i < n`."""
    one, other = _TOKEN.findall(code), _TOKEN.findall(mended)
    first = _alike(one, other)
    last = _alike(one[first:][::-1], other[first:][::-1])
    if not all(
        any(token[0].isalnum() or token[0] in "_." for token in part[first : len(part) - last]) for part in (one, other)
    ):
        first -= _operand(one[:first][::-1], ")]")
        last -= _operand(one[len(one) - last :], "([")
    found = ["".join(part[first : len(part) - last]).strip() for part in (one, other)]
    if any(";" in each for each in found):  # the head of a loop: show the whole loop
        found = [code.strip(), mended.strip()]
    if not all(0 < len(each) <= _LONGEST for each in found):
        return UNSAID
    return Instead(*(f"`{each}`" if " " in each else each for each in found))


def _alike(one: list[str], other: list[str]) -> int:
    """Return how many leading tokens are equal."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _operand(tokens: list[str], opening: str) -> int:
    """Return how many tokens next to an operator are its operand: a word with its brackets."""
    depth = 0
    for at, token in enumerate(tokens):
        depth += (token in opening) - (token in {")]": "([", "([": ")]"}[opening])
        if depth < 0 or (depth == 0 and token in (";", ",")):
            return at
        is_word = token[0].isalnum() or token[0] in "_."
        following = tokens[at + 1] if at + 1 < len(tokens) else ""
        if depth == 0 and is_word and (opening == ")]" or following not in ("(", "[")):
            return at + 1
        if depth == 0 and token in ")]" and opening == "([":
            return at + 1
    return len(tokens)


def _bounds(code: str) -> Iterator[str]:
    """Yield a loop's line with each bound included or excluded, and the line with each `+ 1` or `- 1` removed."""
    templates = [(found.start(), found.end()) for found in _TEMPLATE.finditer(code)]
    for found in _COMPARISON.finditer(code) if _LOOP.search(code) else ():
        if not any(start <= found.start(1) < end for start, end in templates):
            yield code[: found.start(1)] + _NEIGHBOUR[found[1]] + code[found.end(1) :]
    for found in _ONE.finditer(code):
        yield code[: found.start()] + code[found.end() :]


def _other_way(code: str) -> Iterator[str]:
    """Yield a loop from its other end: ++ as --, halving as doubling, and the reverse."""
    if found := _ASCENDING.search(code):
        loop = "for ({type} {i} = ({b}) - 1; {i} >= ({a}); --{i})"
    elif found := _DESCENDING.search(code):
        loop = "for ({type} {i} = {a}; {i} < ({b}); ++{i})"
    elif found := _HALVING.search(code):
        loop = "for ({type} {i} = 1; {i} <= ({a}); {i} <<= 1)"
    elif found := _DOUBLING.search(code):
        last = "({b})" if found["op"] == "<=" else "({b}) / 2"
        loop = "for ({type} {i} = " + last + "; {i} > 0; {i} >>= 1)"
    else:
        return
    yield code[: found.start()] + loop.format(**found.groupdict()) + code[found.end() :]


def _dealt_otherwise(code: str) -> Iterator[str]:
    """Yield a loop with a run of terms for each thread for a loop with every n-th term, and the reverse."""
    if found := _BLOCKED.search(code):
        end = found["n"] or found["m"] or found["o"]
        for stride in _STRIDES:
            loop = f"for ({found['type']} {found['i']} = {found['t']}; {found['i']} < {end}; {found['i']} += {stride})"
            yield code[: found.start()] + loop + code[found.end() :]
    elif (found := _STRIDED.search(code)) and (not found["step"].isdigit() or int(found["step"]) >= LEAST_STRIDE):
        i, t, n, step = (f"({found[name]})" for name in ("i", "t", "n", "step"))
        run = f"(({n} + {step} - 1) / {step})"
        loop = f"for ({found['type']} {found['i']} = {t} * {run}; {i} < {n} && {i} < ({t} + 1) * {run}; ++{found['i']})"
        yield code[: found.start()] + loop + code[found.end() :]


def _tree(loop: str, condition: str) -> tuple[str, str] | None:
    """Return the two lines of a tree sum in shared memory in the other form; None for other lines.

    The forms are `for (h = 1; h < N; h *= 2) if (t % (2 * h) == 0)` and halving with `if (t < h)`.
    """
    other = next(iter(_other_way(loop)), None)
    if other is None:
        return None
    if _DOUBLING.search(loop) and (found := _INTERLEAVED.search(condition)):
        thread = condition[found.start() :].split("%", maxsplit=1)[0].strip()
        return other, f"{condition[: found.start()]}{thread} < {found['h']}{condition[found.end() :]}"
    if _HALVING.search(loop) and (found := _SEQUENTIAL.search(condition)):
        return other, f"{condition[: found.start()]}{found['t']} % (2 * {found['h']}) == 0{condition[found.end() :]}"
    return None


def _renamed(suspect: str) -> Callable[[str], Iterator[str]]:
    """Return a rule that replaces each name by another of its family, one at a time, then two at once."""

    def rule(code: str, depth: int = 2) -> Iterator[str]:
        """Yield the code with one name replaced, then with two."""
        for family in _NAMES[suspect]:
            for name in family:
                for found in re.finditer(rf"(?<![\w.]){re.escape(name)}(?![\w.])", code):
                    for other in family:
                        if other != name:
                            yield code[: found.start()] + other + code[found.end() :]
        if depth > 1:
            ones = list(rule(code, 1))
            yield from dict.fromkeys(two for one in ones for two in rule(one, 1) if two != code and two not in ones)

    return rule


_RULES: tuple[tuple[str, str, Callable[[str], Iterator[str]]], ...] = (
    *((suspect, "", _renamed(suspect)) for suspect in _NAMES),
    ("reduction order", "a loop runs from its other end", _other_way),
    (
        "reduction order",
        "threads take runs of terms where they took every n-th, or the other way round",
        _dealt_otherwise,
    ),
    ("off by one", "a bound is one off", _bounds),
)
