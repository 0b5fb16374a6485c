"""Devices that train together without a manager: mates, one of whom conducts. Pure roles; a driver acts."""
