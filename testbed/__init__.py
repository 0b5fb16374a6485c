"""Machines for experiments, made of this one: networks of their own for processes that stand for devices.

What hurts them has rooms of its own (attacks, chaos, crashes, managers); so have the servers and browsers beside them.
Tests, papers and benchmarks take their kits from here, and nothing here imports them.
"""
