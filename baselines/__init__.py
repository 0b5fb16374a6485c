"""Algorithms of published papers, each in a file of at most 40 lines: ``python -m baselines``.

A baseline is a task, what its plan changes, and perhaps an algorithm that the leader asks (``shoal.Algorithm``).
"""
