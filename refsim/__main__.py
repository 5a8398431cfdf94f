"""Run the command line: `python -m refsim`."""

import sys

from refsim.cli import main

sys.exit(main())
