"""Two independent checks in addition to the oracle: of the instructions that ran, and of single outputs.

Oracle and simulated GPU share their arithmetic: if the model multiplies or rounds wrongly, kernel and oracle agree on
wrong bits. A campaign therefore ends with a replay of hardware results for the instructions that its launches ran, or
with a slow second definition of them (`refsim.silicon.launch_replay`). In every few cases, single outputs are computed
again by the kernel's `definition`, and results of refsim's own oracles by `refsim.reference`, over integers or fractions.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from refsim.compare import within_bound
from refsim.conversions import encode
from refsim.device import Device
from refsim.errors import RefsimError, UnfitTargetError
from refsim.kernels import Bounded, Kernel
from refsim.silicon.launch_replay import Replays, shared
from refsim.silicon.vectors import splitmix64
from refsim.silicon.witness import SiliconWitness
from refsim.testing.composed_definition import definition_of
from refsim.testing.decisions import Finding, Observation
from refsim.testing.definitions import Definition, product_element
from refsim.testing.user_code import called
from refsim.testing.verdicts import FAIL, Recomputed

PRODUCT_CHECK = 4  # declared products of a kernel that are run
SAMPLED = 16
"""About this many cases of a campaign, evenly spaced, have some elements computed again."""


@dataclass
class Witnesses:
    """The state of the independent checks: the instructions that ran, and the outputs computed again so far."""

    kernel: Kernel
    target: str
    planned: int
    replays: Replays = field(default_factory=shared)
    opcodes: set[str] = field(default_factory=set)
    cases: int = 0
    outputs: int = 0
    differing: int = 0
    first: str = ""
    judges: dict[str, None] = field(default_factory=dict)

    @cached_property
    def definition(self) -> Definition | None:
        """Return the kernel's second definition, declared or of the steps that it computes."""
        return definition_of(self.kernel)

    def saw(self, problem: Any, seen: Observation) -> None:
        """Record one more case that agrees with the oracle, and compute outputs again if it is its turn."""
        self.opcodes |= seen.opcodes
        if self.cases % max(1, self.planned // SAMPLED) == 0:
            for name, array in seen.outputs.items() if self.definition is not None else ():
                if array.size:
                    self._recompute(problem, name, array)
            for name, codes, again in seen.samples:
                wanted = (int(code) for part in again() for code in np.ravel(part))
                for at, (got, want) in enumerate(zip(codes, wanted, strict=False)):
                    if want != -1:
                        self._note(name, f"code {at} of the {name} in {problem!r}", got, f"{want:#x}", got != want)
        self.cases += 1

    def _recompute(self, problem: Any, name: str, array: "np.ndarray[Any, Any]") -> None:
        """Compare one element of an output with the kernel's definition; it depends on the case's number."""
        place = int(splitmix64(np.array([self.cases], np.uint64))[0] % np.uint64(array.size))
        index = tuple(map(int, np.unravel_index(place, array.shape)))
        definition = self.definition
        assert definition is not None
        asked = (*self.kernel.asked(problem, self.target), name, index)
        want = called(self.kernel, "definition", definition, *asked, problem=problem)
        judge = "definition=" if self.kernel.definition is not None else "computes="
        self._compare(judge, problem, name, array, index, want)

    def _compare(
        self, judge: str, problem: Any, name: str, array: "np.ndarray[Any, Any]", index: tuple[int, ...], want: Any
    ) -> None:
        """Compare an element with the code, or the value and bound, that a definition returned for it."""
        if want is None:
            return
        got, where = array[index].view(f"u{array.dtype.itemsize}"), f"{name}{list(index)} of {problem!r}"
        if isinstance(want, Bounded):
            format = self.kernel.output_formats(problem)[name] or None
            found = within_bound(np.asarray(array[index]), want.value, want.bound, format)
            self._note(judge, where, got, f"{want.value} within {want.bound}", bool(found))
        elif isinstance(want, int):
            self._note(judge, where, got, f"{want:#x}", int(got) != want)
        else:
            what = f"definition of kernel {self.kernel.name} returns {type(want).__name__} for {name}{list(index)}"
            rule = "a definition returns the code of one element, Bounded or None"
            raise RefsimError("wrong-output", what, rule=rule)

    def _note(self, judge: str, where: str, got: Any, wanted: str, is_wrong: bool) -> None:
        """Count an element that a slow definition computed again."""
        self.outputs, self.differing = self.outputs + 1, self.differing + is_wrong
        self.judges[judge] = None
        if is_wrong:
            self.first = self.first or f"{where}: {int(got):#x}, by definition {wanted}"

    def ask_products(self, device: Device) -> None:
        """Run the declared products of a kernel without a definition, and compare elements with the exact sums."""
        if self.definition is not None:
            return
        kernel, random = self.kernel, np.random.default_rng(1)
        for each in list(kernel.products.values())[:PRODUCT_CHECK]:
            rows, forms = each.rows[len(each.rows) // 2], (each.a_format, each.b_format)
            shapes = ((rows, each.k), (each.n, each.k))
            a, b = (encode(random.standard_normal(shape), form) for shape, form in zip(shapes, forms, strict=True))
            a = a if each.a_is_free else encode(np.ones(shapes[0]), each.a_format)
            recipe = called(kernel, "products", each.problem, a, b)
            with suppress(UnfitTargetError), device.launcher(kernel.code) as launcher:
                got = called(kernel, "run", kernel.run, launcher, recipe, problem=recipe)[each.output]
                d = np.asarray(got if each.read is None else each.read(got, recipe)).reshape(rows, each.n)
                for place in random.integers(0, d.size, SAMPLED):
                    m, n = divmod(int(place), each.n)
                    want = product_element(a[m], b[n], *forms, each.d_format)
                    self._compare("products=", recipe, each.output, d, (m, n), want)

    def silicon(self) -> SiliconWitness:
        """Return the comparison of the model with recorded hardware for the instructions that ran."""
        return self.replays.of(self.opcodes, self.target)

    def recomputed(self) -> Recomputed:
        is_declared = self.definition is not None or self.outputs > 0
        return Recomputed(self.outputs, self.differing, self.first, is_declared, tuple(self.judges))


def contradicted(silicon: SiliconWitness, recomputed: Recomputed) -> Finding | None:
    """Return the finding if either check contradicts the model, on which kernel and oracle both rest; else None."""
    lines = []
    if silicon.differing:
        lines += ["[model-differs] the model differs from hardware, or from a second definition, in these instructions"]
        lines += SiliconWitness(silicon.differing).lines()
    if recomputed.differing:
        lines += [f"[definition-differs] {recomputed.text}: the first is {recomputed.first}"]
    if not lines:
        return None
    lines.append(
        "help: kernel and oracle may agree and both be wrong: the mistake is in refsim's model, or in the definition"
    )
    return Finding(FAIL, "\n".join(lines), None)
