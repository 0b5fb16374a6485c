"""Shoal beside Flower and NVFLARE: the same network, the same digits, the same four clients, on this machine."""
