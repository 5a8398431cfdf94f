"""What a compiler refused, as an error: the first lines of its log, the flags, and what to do about it."""

import re

from refsim.errors import Kind, RefsimError

_LOG_LINES = 12

# Headers of C and C++ that NVRTC has under <cuda/std/>, and such that it has not at all.
_STANDARD = re.compile(
    r'cannot open source file "(?:(array|atomic|bit|functional|limits|optional|span|tuple|type_traits|utility|variant'
    r"|c(?:assert|float|limits|math|stddef|stdint|stdlib|string))|(assert|float|limits|math|stddef|stdint|stdlib|string)\.h"
    r'|algorithm|cstdio|iostream|memory|numeric|stdexcept|stdio\.h|string|vector)"'
)


def _help(log: str) -> str:
    """What to do about a header of the host, which NVRTC lacks."""
    found = _STANDARD.search(log)
    if found is None:
        return ""
    name = found[1] or (f"c{found[2]}" if found[2] else "")
    instead = f"<cuda/std/{name}>, or " if name else ""
    return f"NVRTC has no headers of the host: {instead}PTX that nvcc made (nvcc -ptx -lineinfo) as the file"


def refused(code: str, what: str, log: str, flags: tuple[str, ...]) -> RefsimError:
    """The error that shows the first lines of a compiler's log."""
    lines = [line.rstrip() for line in log.strip().splitlines() if line.strip()]
    more = f"\n    ({len(lines) - _LOG_LINES} more lines)" if len(lines) > _LOG_LINES else ""
    where = "".join(f"\n    {line}" for line in lines[:_LOG_LINES]) + more
    return RefsimError(code, what, where, f"flags: {' '.join(flags)}", _help(log), kind=Kind.UNREADABLE)
