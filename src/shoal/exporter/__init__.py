"""Metrics of a cluster and of a device for Prometheus: an operator asks, pure functions make families."""
