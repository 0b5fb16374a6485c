"""Where updates are summed: when one leader is saturated, and which topology is faster. Pure functions, numpy only."""
