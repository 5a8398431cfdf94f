"""Python runs this before a program, as the folder stands first on its path: stand-ins of refsim, then the file of this name
that would have been run otherwise. The refsim is the one that this file belongs to, whatever else is installed."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_HERE = Path(__file__).resolve().parent

sys.path.insert(0, str(_HERE.parents[2]))
try:
    from refsim.standins.startup import start
finally:
    del sys.path[0]
start()
_spec = PathFinder.find_spec("sitecustomize", [each for each in sys.path if Path(each or ".").resolve() != _HERE])
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(module_from_spec(_spec))
