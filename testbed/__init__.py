"""Machines for experiments, made of this one: networks of their own for processes that stand for devices."""
