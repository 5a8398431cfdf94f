"""Find the cause where a kernel's bits differ from the simulator's: ptxas, the model, a race, or unspecified bits.

The simulator executes the PTX. Each ptxas compiles that PTX to machine code at each optimization level. A GPU runs it.
"""

from typing import TYPE_CHECKING

from refsim.lazy import exports

if TYPE_CHECKING:
    from refsim.blame.builds import Build as Build
    from refsim.blame.builds import BuiltBy as BuiltBy
    from refsim.blame.builds import GivenCubin as GivenCubin
    from refsim.blame.builds import builds_of as builds_of
    from refsim.blame.builds import readers_of as readers_of
    from refsim.blame.examining import Blame as Blame
    from refsim.blame.examining import examined as examined
    from refsim.blame.examining import examined_without_gpu as examined_without_gpu
    from refsim.blame.running import Silicon as Silicon
    from refsim.blame.shrinking import Shrunk as Shrunk
    from refsim.blame.shrinking import shrunk as shrunk
    from refsim.blame.subjects import BlameSubject as BlameSubject
    from refsim.blame.subjects import GivenLaunch as GivenLaunch
    from refsim.blame.subjects import of_kernel as of_kernel
    from refsim.blame.subjects import of_launch as of_launch
    from refsim.blame.subjects import require_same_entries as require_same_entries
else:
    __getattr__, __dir__ = exports(__name__)
