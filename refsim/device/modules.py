"""A cubin on a GPU, with the declarations of its PTX: refsim checks a launch against them before the driver sees it."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

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
from refsim.ptx.machine import launch_rules
from refsim.ptx.machine.arguments import argument_bytes, check_count
from refsim.ptx.machine.launch_rules import LaunchRequest
from refsim.ptx.text.parser import parse, signatures
from refsim.ptx.text.source_names import entry_named
from refsim.ptx.text.syntax import Function, Module


@dataclass
class NoModule:
    """The module of a kernel that is a Python function: refsim loads nothing. `source` is the function's name."""

    driver: Driver
    source: str
    broken: bool = False

    def run(self, launch: LaunchRequest) -> None:
        """Raise RefsimError unknown-entry: a Python function has no entries."""
        what = f"{self.source} is a Python function, without an entry {launch.entry!r}"
        help = "launcher.call(...) with the function's arguments"
        raise RefsimError("unknown-entry", what, rule="Kernel(call=...) has no entries", help=help)

    def finish(self, where: str) -> None:
        """Wait for all work on the device; `broken` stays set if that fails."""
        self.broken = True
        synchronized(self.driver, where)
        self.broken = False

    lets_others_begin = False

    @property
    def keeps_nothing(self) -> bool:
        """Return True. State of a Python function outlives every launcher, so a new module would not help."""
        return True

    def opcodes(self, entries: frozenset[str]) -> frozenset[str]:
        return frozenset()

    def unload(self) -> None:
        pass


@dataclass
class LoadedModule:
    """One image in the driver's context, a cubin or PTX; `text` is its PTX, `source` names it in errors."""

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
            what = f"the driver does not load the {kind}: {fault}"
            help = "compile for this GPU's compute capability"
            raise RefsimError("driver-refused", what, self.source, help=help) from fault

    @property
    def module(self) -> Module:
        """Return the PTX without the bodies of its functions."""
        return _declarations(self.text)

    @property
    def keeps_nothing(self) -> bool:
        """Return whether launches can leave nothing in the module that a later launch would read.

        The standard library declares dozens of variables that no function names: these cannot change.
        """
        variables = [name for name, variable in self.module.variables.items() if variable.space == "global"]
        named = Counter(re.findall(r"[\w$]+", self.text)) if variables else Counter()
        return all(named[name] == 1 for name in variables)

    def opcodes(self, entries: frozenset[str]) -> frozenset[str]:
        """Return the opcodes of the entries and of all functions; empty if the PTX cannot be parsed."""
        names = {self._declared(entry).name for entry in entries}
        return frozenset().union(*(found for name, found in self._opcodes.items() if name in names or not name))

    @cached_property
    def _opcodes(self) -> dict[str, frozenset[str]]:
        """Return the opcodes of each entry, and under "" of all other functions; empty if the PTX cannot be parsed."""
        try:
            functions = parse(self.text).functions
        except RefsimError:
            return {}
        found = {name: function.opcodes for name, function in functions.items() if function.is_entry}
        others = (function.opcodes for function in functions.values() if not function.is_entry)
        return {**found, "": frozenset().union(*others)}

    def unload(self) -> None:
        """Unload the module unless the context is lost."""
        if not self.broken:
            self.driver.launching.unload(self.handle)

    def run(self, launch: LaunchRequest) -> None:
        """Launch an entry and wait for its end, unless it lets other launches begin.

        Raises RefsimError for launches that break a rule, that the driver refuses, or whose kernel fails.
        """
        declared = self._declared(launch.entry)
        if launch.shared_bytes < 0:
            what = f"shared_bytes={launch.shared_bytes} is not allowed"
            raise RefsimError("bad-launch", what, rule="bytes of dynamic shared memory")
        shape = launch_rules.launch_shape(declared, self.target, launch)
        launch_rules.check_parameters(declared, self.module.version, self.target)
        if launch.programmatic:
            launch_rules.check_programmatic(declared.name, self.target)
        check_count(declared, launch.args)
        arguments = [argument_bytes(declared, position, argument) for position, argument in enumerate(launch.args)]
        where = f"{launch.entry} of {self.source}, grid {shape.grid}, block {shape.block}"
        try:
            self._start(replace(launch, entry=declared.name), shape, arguments)
        except DriverError as fault:
            raise RefsimError("driver-refused", f"the driver refused the launch: {fault}", where) from fault
        if not self.lets_others_begin:
            self.finish(where)

    @cached_property
    def lets_others_begin(self) -> bool:
        """Return whether the next launch may begin before this one ends, by griddepcontrol.launch_dependents."""
        return "griddepcontrol.launch_dependents" in self.text

    def _declared(self, entry: str) -> Function:
        entries = {name: function for name, function in self.module.functions.items() if function.is_entry}
        return entries[entry_named(entry, entries, self.text, self.source)]

    def _start(self, launch: LaunchRequest, shape: launch_rules.LaunchShape, arguments: Sequence[bytes]) -> None:
        """Launch an entry with its attributes: cluster size, cooperative, programmatic."""
        launching = self.driver.launching
        function = launching.function(self.handle, launch.entry)
        self._opt_in(function, launch, shape)
        attributes = []
        if launch.cluster is not None:
            attributes.append(cluster_dimension(shape.cluster))
        if launch.cooperative:
            self._check_resident(function, launch, shape)
            attributes.append(COOPERATIVE)
        if launch.programmatic:
            attributes.append(PROGRAMMATIC)
        config = LaunchConfig(
            launch_rules.extents("grid", launch.grid), shape.block, launch.shared_bytes, tuple(attributes)
        )  # the grid as given: with .blocksareclusters the driver multiplies it
        launching.launch(function, config, arguments)

    def _opt_in(self, function: Any, launch: LaunchRequest, shape: launch_rules.LaunchShape) -> None:
        """Allow more than 48 KiB of shared memory and clusters of more than 8 blocks if the launch needs them."""
        launching = self.driver.launching
        static = launching.attribute(function, STATIC_SHARED_BYTES)
        if static + launch.shared_bytes > launch_rules.MAX_STATIC_SHARED:
            try:
                launching.set_attribute(function, MAX_DYNAMIC_SHARED_BYTES, launch.shared_bytes)
            except DriverError as fault:
                raise RefsimError(
                    "launch-limit",
                    f"{static + launch.shared_bytes} B of shared memory ({static} static, {launch.shared_bytes} dynamic): "
                    f"{fault}",
                    f"launch of {launch.entry}",
                ) from fault
        if shape.cluster_ctas > launch_rules.PORTABLE_CLUSTER:
            launching.set_attribute(function, NON_PORTABLE_CLUSTER_ALLOWED, 1)

    def _check_resident(self, function: Any, launch: LaunchRequest, shape: launch_rules.LaunchShape) -> None:
        """Raise RefsimError launch-limit if a cooperative grid does not fit: its first barrier would never end."""
        threads, facts = shape.threads, self.driver.facts()
        each = self.driver.launching.blocks_per_multiprocessor(function, threads, launch.shared_bytes)
        if shape.ctas > each * facts.multiprocessors:
            raise RefsimError(
                "launch-limit",
                f"a cooperative grid of {shape.ctas:,} blocks: {facts.name} holds "
                f"{each * facts.multiprocessors:,} at once",
                f"launch of {launch.entry}",
                f"{facts.multiprocessors} SMs of {each}; a block has {threads} threads and {launch.shared_bytes} B of "
                "dynamic shared memory",
                "launch fewer blocks, and let each do more",
            )

    def finish(self, where: str) -> None:
        """Wait for all launches; `broken` stays set if a kernel failed."""
        self.broken = True
        synchronized(self.driver, where)
        self.broken = False


RunnableModule = LoadedModule | NoModule
"""A module whose entries a launcher runs; `broken` is set when a kernel has destroyed the context."""


def synchronized(driver: Driver, where: str) -> None:
    """Wait for all launches; raise RefsimError launch-failed if a kernel did not come to its end."""
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
    """Return the declarations of a PTX text; cached, because parsing 2 MB takes seconds."""
    return signatures(text)
