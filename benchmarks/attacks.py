"""Known attacks on real processes, and whether the harm happened; ``testbed.attacks.run`` describes them."""

import sys

from testbed.attacks.run import main

if __name__ == "__main__":
    sys.exit(main())
