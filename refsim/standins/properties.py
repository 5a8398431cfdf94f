"""The simulated GPU as stand-ins tell it: its attributes, its name, and its memory."""

from refsim.device.attributes import ATTRIBUTES, BY_NUMBER, Attribute
from refsim.ptx.memory.space import MAX_BYTES
from refsim.standins.session import GpuSession

MEMORY_BYTES = MAX_BYTES
DRIVER_VERSION = 13000
"""The result of cuDriverGetVersion: the CUDA release whose PTX and headers the simulator follows."""


def value_of(session: GpuSession, row: Attribute) -> int:
    """Return an attribute's value; raise UnsupportedError where the target's is not known."""
    value = row.value(session.target)
    if value < 0:
        raise session.unsupported(f"CU_DEVICE_ATTRIBUTE_{row.name} of {session.target}")
    return value


def attribute(session: GpuSession, number: int, asker: str) -> int:
    """Return a device attribute by its number; raise UnsupportedError for a number without a value here."""
    row = BY_NUMBER.get(int(number))
    if row is None:
        raise session.unsupported(f"{asker} of attribute {int(number)}")
    return value_of(session, row)


def attribute_named(session: GpuSession, name: str, asker: str) -> int:
    """Return a device attribute by its name in any case (multiprocessor_count); UnsupportedError for others."""
    row = next((each for each in ATTRIBUTES if each.name == name.upper()), None)
    if row is None:
        raise session.unsupported(f"{asker}.{name}")
    return value_of(session, row)


def device_name(session: GpuSession) -> str:
    """Return the name of the simulated GPU: refsim simulated sm_90a."""
    return f"refsim simulated {session.target}"
