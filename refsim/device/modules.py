"""A cubin on a GPU, with what its PTX says of every entry: a launch is checked against that before the driver sees it."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol

from refsim.device.driver import (
    COOPERATIVE,
    MAX_DYNAMIC_SHARED_BYTES,
    NON_PORTABLE_CLUSTER_ALLOWED,
    PROGRAMMATIC,
    STATIC_SHARED_BYTES,
    Driver,
    DriverError,
    LaunchConfig,
    cluster_dimension,
)
from refsim.errors import Kind, RefsimError
from refsim.ptx import Extents
from refsim.ptx.machine.arguments import argument_bytes, check_count
from refsim.ptx.machine.launch_rules import LaunchShape, check_parameters, check_programmatic, extents, launch_shape
from refsim.ptx.machine.limits import MAX_STATIC_SHARED, PORTABLE_CLUSTER
from refsim.ptx.text.entry_names import entry_named
from refsim.ptx.text.parser import parse, signatures
from refsim.ptx.text.syntax import Function, Module


@dataclass(frozen=True)
class CheckedLaunch:
    """One launch as it was asked for; `shape` is what the rules made of its extents."""

    entry: str
    grid: Extents
    shape: LaunchShape
    shared_bytes: int
    cluster: Extents | None
    is_cooperative: bool
    is_programmatic: bool


class RunnableModule(Protocol):
    """What a launcher runs entries of; `broken` once a kernel has taken the context with it."""

    @property
    def source(self) -> str: ...

    @property
    def broken(self) -> bool: ...

    def run(
        self,
        entry: str,
        grid: Extents,
        block: Extents,
        args: Sequence[Any],
        shared_bytes: int,
        cluster: Extents | None,
        cooperative: bool,
        programmatic: bool,
    ) -> None:
        """Launches an entry and waits for its end, but where it `lets_others_begin`."""

    @property
    def lets_others_begin(self) -> bool:
        """Whether the next launch may begin before one of this module has ended, so that nobody waits between the two."""

    def finish(self, where: str) -> None:
        """Waits for what was launched, and raises what became of it."""

    @property
    def keeps_nothing(self) -> bool:
        """Whether no launch can leave something in the module that the next one would find."""

    def opcodes(self, entries: frozenset[str]) -> frozenset[str]:
        """The instructions of some entries and of every function that they may call; empty where nobody can tell."""

    def unload(self) -> None: ...


@dataclass
class NoModule:
    """What a Python function launches is not refsim's to load; `source` is its name."""

    driver: Driver
    source: str
    broken: bool = False

    def run(self, entry: str, *arguments: Any) -> None:
        raise RefsimError(
            "unknown-entry",
            f"{self.source} is a Python function, without an entry {entry!r}",
            rule="Kernel(call=...) has no entries",
            help="launcher.call(...) with the function's arguments",
        )

    def finish(self, where: str) -> None:
        self.broken = True
        synchronized(self.driver, where)
        self.broken = False

    @property
    def lets_others_begin(self) -> bool:
        return False

    @property
    def keeps_nothing(self) -> bool:
        """What a Python function keeps outlives any launcher: the next problem finds it, whoever runs it."""
        return True

    def opcodes(self, entries: frozenset[str]) -> frozenset[str]:
        return frozenset()

    def unload(self) -> None:
        pass


@dataclass
class LoadedModule:
    """One image in the driver's context, a cubin or PTX; `text` is the PTX of it, `source` names it in errors."""

    driver: Driver
    image: bytes
    text: str
    target: str
    source: str
    broken: bool = False

    def __post_init__(self) -> None:
        try:
            self.handle = self.driver.launching.load(self.image)
        except DriverError as fault:
            kind = "cubin" if self.image.startswith(b"\x7fELF") else "PTX"
            raise RefsimError(
                "driver-refused",
                f"the driver does not load the {kind}: {fault}",
                self.source,
                help="compile for this GPU's compute capability",
            ) from fault

    @property
    def module(self) -> Module:
        """The PTX without the bodies of its functions."""
        return _declarations(self.text)

    @property
    def keeps_nothing(self) -> bool:
        """Whether no launch can leave something in the module that the next one would find.

        The standard library declares dozens of variables that no function names: those cannot change.
        """
        variables = [name for name, variable in self.module.variables.items() if variable.space == "global"]
        named = Counter(re.findall(r"[\w$]+", self.text)) if variables else Counter()
        return all(named[name] == 1 for name in variables)

    def opcodes(self, entries: frozenset[str]) -> frozenset[str]:
        names = {self._declared(entry).name for entry in entries}
        return frozenset().union(*(found for name, found in self._opcodes.items() if name in names or not name))

    @cached_property
    def _opcodes(self) -> dict[str, frozenset[str]]:
        """The opcodes of each entry, and under "" those of all other functions; none where the text cannot be read whole."""
        try:
            functions = parse(self.text).functions
        except RefsimError:
            return {}
        found = {name: function.opcodes for name, function in functions.items() if function.is_entry}
        others = (function.opcodes for function in functions.values() if not function.is_entry)
        return {**found, "": frozenset().union(*others)}

    def unload(self) -> None:
        if not self.broken:
            self.driver.launching.unload(self.handle)

    def run(
        self,
        entry: str,
        grid: Extents,
        block: Extents,
        args: Sequence[Any],
        shared_bytes: int,
        cluster: Extents | None,
        cooperative: bool,
        programmatic: bool,
    ) -> None:
        """Launch an entry and wait for its end, but where it may be overlapped; RefsimError for what the rules, the driver or
        the kernel refuse.
        """
        declared = self._declared(entry)
        if shared_bytes < 0:
            raise RefsimError(
                "bad-launch", f"shared_bytes={shared_bytes} is not allowed", rule="bytes of dynamic shared memory"
            )
        shape = launch_shape(declared, self.target, grid, block, cluster)
        check_parameters(declared, self.module.version, self.target)
        if programmatic:
            check_programmatic(declared.name, self.target)
        check_count(declared, args)
        arguments = [argument_bytes(declared, position, argument) for position, argument in enumerate(args)]
        launch = CheckedLaunch(declared.name, grid, shape, shared_bytes, cluster, cooperative, programmatic)
        where = f"{entry} of {self.source}, grid {shape.grid}, block {shape.block}"
        try:
            self._start(launch, arguments)
        except DriverError as fault:
            raise RefsimError("driver-refused", f"the driver refused the launch: {fault}", where) from fault
        if not self.lets_others_begin:
            self.finish(where)

    @cached_property
    def lets_others_begin(self) -> bool:
        return "griddepcontrol.launch_dependents" in self.text

    def _declared(self, entry: str) -> Function:
        entries = {name: function for name, function in self.module.functions.items() if function.is_entry}
        return entries[entry_named(entry, entries, self.text, self.source)]

    def _start(self, launch: CheckedLaunch, arguments: Sequence[bytes]) -> None:
        launching = self.driver.launching
        function = launching.function(self.handle, launch.entry)
        self._opt_in(function, launch)
        attributes = []
        if launch.cluster is not None:
            attributes.append(cluster_dimension(launch.shape.cluster))
        if launch.is_cooperative:
            self._check_resident(function, launch)
            attributes.append(COOPERATIVE)
        if launch.is_programmatic:
            attributes.append(PROGRAMMATIC)
        config = LaunchConfig(
            extents("grid", launch.grid), launch.shape.block, launch.shared_bytes, tuple(attributes)
        )  # the grid as it was given: with .blocksareclusters the driver multiplies it
        launching.launch(function, config, arguments)

    def _opt_in(self, function: Any, launch: CheckedLaunch) -> None:
        """More than 48 KiB of shared memory and clusters of more than 8 blocks have to be allowed for a function."""
        launching = self.driver.launching
        static = launching.attribute(function, STATIC_SHARED_BYTES)
        if static + launch.shared_bytes > MAX_STATIC_SHARED:
            try:
                launching.set_attribute(function, MAX_DYNAMIC_SHARED_BYTES, launch.shared_bytes)
            except DriverError as fault:
                raise RefsimError(
                    "launch-limit",
                    f"{static + launch.shared_bytes} B of shared memory ({static} static, {launch.shared_bytes} dynamic): "
                    f"{fault}",
                    f"launch of {launch.entry}",
                ) from fault
        if launch.shape.cluster_ctas > PORTABLE_CLUSTER:
            launching.set_attribute(function, NON_PORTABLE_CLUSTER_ALLOWED, 1)

    def _check_resident(self, function: Any, launch: CheckedLaunch) -> None:
        """A cooperative grid whose blocks do not all fit at once would wait for ever at its first barrier."""
        threads, facts = launch.shape.threads, self.driver.facts()
        each = self.driver.launching.blocks_per_multiprocessor(function, threads, launch.shared_bytes)
        if launch.shape.ctas > each * facts.multiprocessors:
            raise RefsimError(
                "launch-limit",
                f"a cooperative grid of {launch.shape.ctas:,} blocks: {facts.name} holds "
                f"{each * facts.multiprocessors:,} at once",
                f"launch of {launch.entry}",
                f"{facts.multiprocessors} SMs of {each}; a block has {threads} threads and {launch.shared_bytes} B of "
                "dynamic shared memory",
                "launch fewer blocks, and let each do more",
            )

    def finish(self, where: str) -> None:
        self.broken = True
        synchronized(self.driver, where)
        self.broken = False


def synchronized(driver: Driver, where: str) -> None:
    """Waits for what was launched; RefsimError launch-failed for a kernel that did not come to its end."""
    try:
        driver.synchronize()
    except DriverError as fault:
        raise RefsimError(
            "launch-failed",
            f"the kernel did not come to its end: {fault}",
            where,
            "the device's context is lost with it",
            "run the case on the simulator, which names the instruction; restart before using this GPU again",
            Kind.FAULT,
        ) from fault


@lru_cache(maxsize=4)
def _declarations(text: str) -> Module:
    """What a text declares, read once however often its module is loaded anew: of 2 MB that takes seconds."""
    return signatures(text)
