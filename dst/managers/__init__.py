"""Several managers of one simulated cluster that share a store, and the checks on them."""
