"""Find the cause where a kernel's bits differ from the simulator's: ptxas, the model, a race, or unspecified bits.

The simulator executes the PTX. Each ptxas compiles that PTX to machine code at each optimization level. A GPU runs it.
"""

from typing import TYPE_CHECKING

__all__ = [
    "Blame",
    "BlameSubject",
    "Build",
    "BuiltBy",
    "GivenCubin",
    "GivenLaunch",
    "Shrunk",
    "Silicon",
    "builds_of",
    "examined",
    "examined_without_gpu",
    "of_kernel",
    "of_launch",
    "readers_of",
    "require_same_entries",
    "shrunk",
]

if TYPE_CHECKING:
    from refsim.blame.builds import Build, BuiltBy, GivenCubin, builds_of, readers_of
    from refsim.blame.examining import Blame, examined
    from refsim.blame.running import Silicon
    from refsim.blame.shrinking import Shrunk, shrunk
    from refsim.blame.subjects import BlameSubject, GivenLaunch, of_kernel, of_launch, require_same_entries
    from refsim.blame.without_gpu import examined_without_gpu
else:
    from refsim.lazy import exports

    __getattr__, __dir__ = exports(
        __name__,
        {
            "refsim.blame.builds": ("Build", "BuiltBy", "GivenCubin", "builds_of", "readers_of"),
            "refsim.blame.examining": ("Blame", "examined"),
            "refsim.blame.running": ("Silicon",),
            "refsim.blame.shrinking": ("Shrunk", "shrunk"),
            "refsim.blame.subjects": ("GivenLaunch", "BlameSubject", "of_kernel", "of_launch", "require_same_entries"),
            "refsim.blame.without_gpu": ("examined_without_gpu",),
        },
    )
    del exports
