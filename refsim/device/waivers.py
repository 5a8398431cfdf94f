"""The waivers that hold for one kernel: its own, those of comments in its source, and those of the device."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from refsim import ptx
from refsim.device.kernel_sources import source_files
from refsim.device.units import TEXT_NAME, read_source
from refsim.errors import RefsimError
from refsim.kernel_code import KernelCode
from refsim.ptx.findings.table import check_name
from refsim.ptx.findings.waivers import Waiver, comments, lines_of


@dataclass
class KernelWaivers:
    """The checks that are off for a kernel, its waivers, and the text of the finding that each allowed.

    A waiver of `demanded` must allow a finding. Another one must do so if a launched entry has code at its line; so a
    file may hold several kernels. A device's waiver (`shared`) must also do so if no entry of the file has such code.
    """

    off: tuple[str, ...] = ()
    demanded: frozenset[Waiver] = frozenset()
    commented: tuple[Waiver, ...] = ()
    shared: frozenset[Waiver] = frozenset()
    found: dict[Waiver, str] = field(default_factory=dict)

    @staticmethod
    def of(code: KernelCode, without: Sequence[str]) -> "KernelWaivers":
        """Return the waivers of a kernel on a device that leaves out `without`; RefsimError for a wrong comment."""
        own, name = ptx.Checks(off=code.without), Path(code.file).name if code.is_ptx and code.file else ""
        given = ptx.Checks(off=tuple(without))
        shared = [each for each in given.waivers if not name or not each.is_of_ptx or each.file == name]
        commented = list(_commented(code))
        alone = [waiver for waiver, has_code in commented if not has_code]
        return KernelWaivers(
            tuple(dict.fromkeys((*given.off, *own.off))),
            frozenset((*own.waivers, *alone)),
            tuple(waiver for waiver, _ in commented),
            frozenset(shared),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of checks and waivers, as `ptx.Checks` takes them."""
        return (*self.off, *map(str, dict.fromkeys((*self.demanded, *self.commented, *self.shared))))

    def allowed(self, trace: ptx.Trace) -> None:
        """Record what the waivers allowed in one launch."""
        for name, error in trace.waived:
            self.found.setdefault(Waiver.of(name), f"{error.what}, at {error.where}")

    def judged(self, program: ptx.Program, entries: Sequence[str]) -> dict[str, str]:
        """Return the finding that each waiver allowed, by waiver: "" for one that must allow a finding and did not."""
        asked = dict.fromkeys((*self.demanded, *self.commented, *self.shared))
        if not asked or not entries:
            return {}
        ran = {line for entry in entries for step in program.code(entry).steps for line in lines_of(step.statement)}
        known = {
            line
            for function in program.module.functions.values()
            for each in function.statements
            for line in lines_of(each)
        }
        files = {file for file, _ in known}
        must = {
            each
            for each in asked
            if each in self.demanded
            or each.is_at(ran)
            or (each in self.shared and not each.is_at(known) and (each.file in files or each.is_of_ptx))
        }
        return {str(each): self.found.get(each, "") for each in asked if each in self.found or each in must}


def _commented(code: KernelCode) -> list[tuple[Waiver, bool]]:
    """Return the waivers of comments, and whether each stands behind code."""
    texts = [(file.name, read_source(file)) for file in source_files(code)]
    texts += [(TEXT_NAME, code.source)] if code.source is not None else []
    texts += [("source.ptx", code.ptx)] if code.ptx is not None else []
    found = [each for name, text in texts if "refsim:" in text for each in comments(name, text)]
    for waiver, _ in found:
        try:
            check_name(str(waiver))
        except RefsimError as error:
            error.where = f"the comment at {waiver.file}:{waiver.line}"
            raise
    return found
