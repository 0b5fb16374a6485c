"""The figures that MDLdroid's text reports, to stand beside ours. Its plots are not read off."""

from __future__ import annotations

from collections.abc import Mapping

#: §3.2.2, Figure 3: what NeighborSGD loses against CentralSGD, by the number of devices. ChainSGD loses nothing.
NEIGHBOUR_LOSES: Mapping[int, float] = {6: 0.03, 9: 0.05}

#: Table 3, HAR: on a server, the best of a master's and of the chain's, and the chain's at 1-E20.
HAR: Mapping[str, float] = {"server": 0.938, "master": 0.927, "chain": 0.925, "chain at 1-E20": 0.90}

#: §4.4.4 calls it training time, §1 latency overhead due to busy devices.
TIME_VS_TREE = -0.23
TIME_VS_RING = -0.53
VARIANCE_VS_TREE = -0.40

#: §4.4.2: how much longer TGE and DGE take than TDGE.
EXPLORE: Mapping[str, float] = {"TGE": 1.2, "DGE": 1.3}

#: §4.5: against one device, and against a master on average.
SPEEDUP_VS_ONE = (2.0, 3.5)
SPEEDUP_VS_MASTER = 1.5

#: §2: a phone's heap of 512 MB holds no eight updates of 46.4 MB beside the rest.
HEAP_MB = 512
OUT_OF_MEMORY_AT = 8

#: §2, Figure 1 (c): seconds to add up eight models that are in memory, and as many in files.
AGGREGATING_OF = 8
AGGREGATING_S = (0.160, 47.307)

#: §4.4.3, Figure 9: how much longer DGE takes than TDGE to learn again, with more than seven devices.
RELEARN_TIME = 1.5
#: The strategies that are compared there.
RELEARNING = ("TDGE", "TGE", "DGE")

#: Figure 11 (c): the energy of a master's communication over that of a chain's device.
MASTER_ENERGY = 5.8
