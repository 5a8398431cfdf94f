"""`python -m refsim` is the command line."""

import sys

from refsim.cli import main

sys.exit(main())
