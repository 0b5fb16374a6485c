"""A chain of pairs: partials meet two at a time, device to device, with no centre. Pure; knows no network and no clock.

MDLdroid's shape (IPSN'20). Each device begins with a partial of its own; in a merge one device sends its partial to
another and retires for the round, the other goes on with both; whoever is left is the root and broadcasts. ``pairs``
says who merges next, ``ahead`` says it better where links differ, ``exact`` and ``bound`` how fast it can be at all,
``broadcast`` how the model comes back, and ``resources`` who is left in peace.
"""
