"""Which two peers merge next: partial sums meet two at a time, with no centre. Pure; knows no network and no clock.

MDLdroid's chain of pairs (IPSN'20). Each device begins with a partial of its own; in a merge one device sends its
partial to another and retires for the round, the other goes on with both; the last one is the root and gives the
version out. ``pairs`` chooses the next pair, ``ahead`` chooses better where links differ, by ``exact`` the best order
for a few devices; ``links`` holds the duration of a merge; ``resources`` decides which devices are too busy.
"""
