"""Crashes while a checkpoint is saved: processes that are killed, and disks that lose power or run full."""
