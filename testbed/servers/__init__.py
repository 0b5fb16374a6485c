"""Servers that Shoal works with, started on ports of their own: PostgreSQL, object storage, HAProxy."""
