"""How many files this process may have open, and how many of them may be connections. Knows no sockets."""

from __future__ import annotations

import resource

from shoal.wire.limits import CONNECTIONS_FILE_SHARE, CONNECTIONS_MAX, OPEN_FILES_WANTED


def raise_limit() -> int:
    """Allow this process as many open files as the system lets it have, up to what Shoal ever needs; how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            # Some systems have a lower bound than the hard limit says: what we have must do.
            return soft
        return wanted
    return OPEN_FILES_WANTED if soft == resource.RLIM_INFINITY else soft


def connections_max() -> int:
    """Connections that one door takes at once. Well below the limit: checkpoints and blobs are files as well."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(1, min(CONNECTIONS_MAX, int(soft * CONNECTIONS_FILE_SHARE)))
