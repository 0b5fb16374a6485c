"""Shoal: train PyTorch models on the devices people already have at the edge."""

__version__ = "0.1.0"
