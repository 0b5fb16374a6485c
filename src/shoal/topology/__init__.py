"""How updates meet: when one leader is too few, which shape is faster. Pure functions and small state, numpy only."""
