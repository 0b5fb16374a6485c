"""Borrowed compute: products cut into tasks, hidden, checked, shared out. Pure functions and small state, numpy only.

``shoal.offload`` is also a function that people call: ``model = shoal.offload(model, pool)``. The top of the package
makes this one callable for them.
"""
