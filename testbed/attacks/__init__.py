"""Attacks on real processes and on the roles, and their parts."""
