"""A simulated GPU that runs a changed PTX text instead of the kernel's code, to try edits of a kernel."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from refsim import ptx
from refsim.device.sim import LAUNCH_SECONDS, SimLauncher
from refsim.kernel_code import KernelCode, code_of
from refsim.ptx.text.source_names import entry_named

ORDERS = 16  # eager, lazy, and enough random ones that each warp is likely to come last


@dataclass
class ChangedDevice:
    """A device that runs `program` and records its entries, under `schedules` schedules and `seconds` a launch."""

    program: ptx.Program
    schedules: int = ORDERS
    seconds: float = LAUNCH_SECONDS
    name: str = "sim"
    entries: set[str] = field(default_factory=set)

    @property
    def target(self) -> str:
        return self.program.target

    def describe(self) -> dict[str, str]:
        return {"device": f"simulated GPU ({self.target})", "target": self.target}

    @property
    def is_simulated(self) -> bool:
        return True

    def hardware(self) -> dict[str, str]:
        return {}

    def probing(self) -> "ChangedDevice":
        return replace(self, schedules=1)

    @contextmanager
    def loaded(self, text: str, source: str) -> Iterator[SimLauncher]:
        """Yield a launcher for a PTX text, which is run unchanged."""
        yield SimLauncher(ptx.load(text, self.target), self.schedules)

    @contextmanager
    def launcher(
        self, code: KernelCode | Path | None, *, count_banks: bool = False, follow_open: bool = False
    ) -> Iterator[SimLauncher]:
        """Yield a launcher of `program`, whatever `code` is."""
        launcher = SimLauncher(self.program, self.schedules, count_banks=count_banks, seconds=self.seconds)
        launcher.any_order = code_of(code).any_order
        run = launcher.launch

        def noted(entry: str, *arguments: Any, **options: Any) -> None:
            self.entries.add(entry_named(entry, self.program.entries, self.program.text))
            run(entry, *arguments, **options)

        launcher.launch = noted  # type: ignore[method-assign]
        yield launcher
