"""FLeet (Middleware'20) reproduced on Shoal: what late updates cost and what online learning brings. See README.md."""

from testbed.one_core import set_one_thread

# Matrices here are small: more threads of the linear algebra only wait for each other. Before numpy is imported.
set_one_thread()
