"""Python runs this file before a program, as its folder is first on the path: it starts refsim's stand-ins, then runs
the sitecustomize that Python would have run otherwise. The refsim used is the one beside the package of this file."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_HERE = Path(__file__).resolve().parent

sys.path.insert(0, str(_HERE.parents[1]))
try:
    import refsim  # noqa: F401 - modules imported later are of this one, whatever else the path has
    from refsim_run.startup import start
finally:
    del sys.path[0]
start()
_spec = PathFinder.find_spec("sitecustomize", [each for each in sys.path if Path(each or ".").resolve() != _HERE])
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(module_from_spec(_spec))
