"""Kernels of docs/fused-kernels.md and others, and mistakes in them: which causes `refsim verify` names for each."""

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from conformance.fused_kernels import more, recipes
from conformance.fused_kernels.more import CASES_OF_MORE, SPECIAL_CASES
from conformance.fused_kernels.recipes import Rows
from refsim import device
from refsim.kernels import Kernel
from refsim.testing import explain_problem, steps

PAGE = Path(__file__).parents[2] / "docs/fused-kernels.md"
TABLE = Path(__file__).with_name("mistakes.toml")
TABLE_OF_MORE = Path(__file__).with_name("more.toml")
SECONDS = 3.0
RIGHT, UNNAMED, WRONG, NO_DIFFERENCE = "right", "unnamed", "wrong", "no difference"
CASES: dict[str, Any] = {
    "rms_norm_fp8": Rows(4, 384),
    "silu_mul_fp8": Rows(4, 512),
    "rope_kv_fp8": Rows(6, 256),
    "add_norm_nvfp4": Rows(40, 256),
    **CASES_OF_MORE,
}


@cache
def kernels_of_page() -> dict[str, Kernel]:
    """The kernels as the page declares them, by name."""
    space = {"Kernel": Kernel, "steps": steps, **vars(recipes)}
    for code in re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        exec(code, space)
    return {each.name: each for each in space.values() if isinstance(each, Kernel)}


@cache
def kernels() -> dict[str, Kernel]:
    """All kernels, by name."""
    return kernels_of_page() | {each.name: each for each in more.KERNELS}


@dataclass(frozen=True)
class Mistake:
    """Edits of a kernel's file, each a text and what replaces it, the pattern of a right answer, and the test case."""

    id: str
    kernel: str
    right: str
    edits: tuple[tuple[str, str], ...]
    case: Any

    def broken(self) -> Kernel:
        """The kernel with the mistake; ValueError for a text that is nowhere."""
        file = kernels()[self.kernel].file
        assert file is not None
        text = file.read_text("utf-8")
        for old, new in self.edits:
            if old not in text:
                raise ValueError(f"{self.id}: {old!r} is nowhere in {file.name}")
            text = text.replace(old, new)
        return replace(kernels()[self.kernel], file=None, source=text)


@cache
def mistakes() -> dict[str, Mistake]:
    """Both tables, by id."""
    rows = [row for table in (TABLE, TABLE_OF_MORE) for row in tomllib.loads(table.read_text("utf-8"))["mistake"]]
    found = {}
    for row in rows:
        right = row.get("right") or answers()[row["kind"]]
        case = SPECIAL_CASES[row["case"]] if "case" in row else CASES[row["kernel"]]
        found[row["id"]] = Mistake(row["id"], row["kernel"], right, tuple(map(tuple, row["edits"])), case)
    return found


@cache
def answers() -> dict[str, str]:
    """The pattern of right answers, by kind."""
    return dict(tomllib.loads(TABLE.read_text("utf-8"))["answers"])


@dataclass(frozen=True)
class Answer:
    """What was named of a mistake."""

    id: str
    verdict: str
    says: tuple[str, ...]


def asked(id: str, seconds: float = SECONDS) -> Answer:
    """Run the broken kernel on its test case and explain it: every named cause must match, or the name is wrong."""
    mistake = mistakes()[id]
    found = explain_problem(mistake.broken(), mistake.case, device.open("sim"), seconds=seconds)
    says = tuple(dict.fromkeys(str(each) for part in found.values() for each in part.named))
    if not any(part.differing for part in found.values()):
        verdict = NO_DIFFERENCE
    elif not says:
        verdict = UNNAMED
    else:
        verdict = RIGHT if any(re.search(mistake.right, said, re.IGNORECASE) for said in says) else WRONG
    return Answer(id, verdict, says)
