"""What EDDL reports, with where. Only what its text says in figures: its plots carry no tables. Values only."""

from __future__ import annotations

from collections.abc import Mapping

#: §6.1: the part of a batch that is synchronisation, 16 workers. (Mb/s, pace) -> share.
SYNC_SHARE_OF_16: Mapping[tuple[float, str], float] = {
    (100.0, "sync"): 0.88,
    (100.0, "async"): 0.87,
    (1000.0, "sync"): 0.38,
    (1000.0, "async"): 0.07,
}

#: §6.2: accuracy after 20 asynchronous epochs. Workers -> share.
ASYNC_20_ACCURACY: Mapping[int, float] = {4: 0.95, 16: 0.88}

#: Table 3, scenario 1: model -> accuracy of classification, recall, accuracy of detection. The local one is L1.
COMMUNITY: Mapping[str, tuple[float, float, float]] = {"local": (0.99, 0.9797, 1.0), "global": (0.9693, 0.9375, 1.0)}

#: Tables 1 and 2: the sizes of families that the text names, by their place among the 70 (Figure 1); and all of them.
FAMILY_SIZES: Mapping[int, int] = {3: 1_820, 4: 1_301, 5: 1_277, 6: 1_199, 7: 648, 8: 560, 9: 546}
MALWARE = 16_710

#: §6.4: the size at which BUC stops rising. (Mb/s, pace) -> workers, None where it never does.
SATURATION: Mapping[tuple[float, str], int | None] = {
    (100.0, "sync"): 6,
    (100.0, "async"): 4,
    (1000.0, "sync"): None,
    (1000.0, "async"): None,
}

#: §6.8: what the device's own work loses. From one worker to eight where there are two.
WORKER_CPU_LOSS = 0.27
LEADER_CPU_LOSS = (0.05, 0.13)
LEADER_MEMORY_LOSS = (0.19, 0.26)
LEADER_NETWORK_LOSS = (0.10, 0.43)

#: §6.5: the trees of Figure 12, workers -> aggregators.
TREES: Mapping[int, int] = {4: 2, 8: 2, 12: 3, 16: 4}
