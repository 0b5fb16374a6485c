"""Differential privacy of updates: clipping, noise, and what both amount to. Numpy alone; knows no jobs."""
