"""Deterministic simulation testing: seeded disasters, invariants' oracles and the checks on them. Not in the wheel."""
