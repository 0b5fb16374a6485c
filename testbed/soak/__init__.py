"""Hours of a real cluster under faults, one a minute: what is lost, what counts twice, and what grows."""
