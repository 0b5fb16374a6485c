"""The choice of the values of an update to send: the largest, rounded. The rest is kept for later."""
