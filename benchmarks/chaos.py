"""A soak of a real cluster; ``testbed.chaos.soak`` describes its faults and its figures."""

import sys

from testbed.chaos.soak import main

if __name__ == "__main__":
    sys.exit(main())
