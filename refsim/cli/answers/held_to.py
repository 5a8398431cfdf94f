"""The independent checks of verdicts: recorded hardware results, and slow definitions of single outputs."""

from collections.abc import Sequence
from functools import reduce

from refsim.errors import counted
from refsim.render import Wording
from refsim.silicon.witness import SiliconWitness
from refsim.testing.verdicts import Verdict


def witnesses(verdicts: Sequence[Verdict]) -> list[Wording]:
    """Return one part for all kernels: each kind of instruction once, then how many outputs were computed again."""
    if not verdicts:
        return []
    silicon = reduce(SiliconWitness.joined, (each.silicon for each in verdicts))
    facts = {"silicon": silicon.to_json(), "recomputed": {each.kernel: each.recomputed.to_json() for each in verdicts}}
    none = [each.kernel for each in verdicts if not each.checks]
    last = [f"independent checks: none of {', '.join(none)}"] if none else []
    return [Wording((*silicon.lines(), definitions(verdicts), *last), facts, key="witnesses", is_beside=True)]


def definitions(verdicts: Sequence[Verdict]) -> str:
    """Return a line: how many outputs slow definitions computed again, and the kernels that declare none."""
    declared = [each for each in verdicts if each.recomputed.is_declared]
    without = [each.kernel for each in verdicts if not each.recomputed.is_declared]
    outputs, differing = (sum(getattr(each.recomputed, name) for each in declared) for name in ("outputs", "differing"))
    parts = [f"{counted(outputs, 'output', digits=',')} computed again, {differing:,} differ"] if declared else []
    parts += [f"no second definition was asked for {', '.join(without)}"] if without else []
    return f"slow definitions: {'; '.join(parts)}"
