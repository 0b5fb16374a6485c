"""MDLdroid (IPSN'20) reproduced on Shoal: pairs that merge, who merges when, and what that saves. See README.md."""

import os

# Matrices here are small: more threads of the linear algebra only wait for each other. Before numpy is imported.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
