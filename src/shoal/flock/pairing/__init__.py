"""Which two peers merge next: partial sums are added in pairs, without a central node. Pure.

MDLdroid's chain of pairs (IPSN'20). Each device begins with its own partial. In a merge one device sends its partial to
another and is done for the round; the other continues with both. The last one is the root and distributes the version.
``pairs`` chooses the next pair. ``ahead`` chooses a better one if links differ, using ``exact``, the best order for a
few devices. ``links`` has the duration of a merge. ``resources`` decides which devices are too busy.
"""
