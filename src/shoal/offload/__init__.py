"""Borrowed compute: products cut into tasks, hidden, checked and shared out. Pure functions and small state."""
