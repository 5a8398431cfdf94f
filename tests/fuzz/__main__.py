"""python -m tests.fuzz files|lines: see campaign.py."""

import sys

from tests.fuzz.campaign import main

if __name__ == "__main__":
    sys.exit(main())
