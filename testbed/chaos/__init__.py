"""A soak: a real cluster whose processes, links and disks are hurt while it trains, and what must hold afterwards."""
