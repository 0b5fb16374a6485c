"""Devices that train together without a manager: peers, one of which coordinates. Pure roles; a driver acts."""
