"""``python -m multitoken``."""

import sys

from multitoken.cli import main

if __name__ == "__main__":
    sys.exit(main())
