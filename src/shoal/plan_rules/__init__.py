"""Which keys of a plan do not go together: a table of rules. Pure; ``plan`` asks it about each plan that is made.

``plan`` checks each key by itself before, such as the range of a number, so that a rule can rely on values that are
valid one by one.
"""
