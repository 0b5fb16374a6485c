"""Devices that train together without a manager: one peer coordinates the others. Pure roles, and a driver that
acts."""
