"""A Flower app: digits on four nodes."""
