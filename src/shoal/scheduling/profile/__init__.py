"""How many examples a device can train within a budget of time or energy. Pure state, numpy only.

All profilers do the same two things (``sizing.Profiler``): predict a size, and learn from what a task took. Shoal uses
``logrls`` with the margin of ``conformal``; ``benchmarks`` has FLeet's profilers (Middleware 2020), to compare with.
"""
