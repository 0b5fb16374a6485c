"""Measurements. Each is ``python -m benchmarks.NAME [--quick] --json``; the last line printed is one JSON object."""
