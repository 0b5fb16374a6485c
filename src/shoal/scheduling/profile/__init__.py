"""How many examples a device can train within a budget of time or energy. Pure state, numpy only.

All profilers do the same two things (``sizing.Profiler``): say a size, and learn from what it took. ``logrls`` with the
margin of ``conformal`` is ours; ``benchmarks`` has those of FLeet (Middleware 2020), to compare with.
"""
