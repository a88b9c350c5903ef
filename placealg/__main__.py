"""`python -m placealg`: the command line."""

import sys

from placealg.cli import main

if __name__ == "__main__":
    sys.exit(main())
