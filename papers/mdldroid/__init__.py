"""MDLdroid (IPSN'20) reproduced on Shoal: pairs that merge, who merges when, and what that saves. See README.md."""

from testbed.one_core import set_one_thread

# Matrices here are small: more threads of the linear algebra only wait for each other. Before numpy is imported.
set_one_thread()
