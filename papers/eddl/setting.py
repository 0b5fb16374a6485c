"""What EDDL's experiments have in common: the network, the data, the rates, the device. Values only."""

from __future__ import annotations

from itertools import pairwise

from shoal.learning.layout import Layout

#: PerNet (§3): 427-512-512-256-256-128-71.
SIDES = (427, 512, 512, 256, 256, 128, 71)
PERNET = sum(inputs * outputs + outputs for inputs, outputs in pairwise(SIDES))
MODEL_BYTES = 4 * PERNET
LAYOUT = Layout.of([("flat", (PERNET,), "parameter")])

#: §6: 6,656 examples in batches of 128.
EXAMPLES = 6_656
BATCH = 128
EPOCH_BATCHES = EXAMPLES // BATCH

#: Training one batch on an ODROID-XU4. The paper does not say it; the share of a batch that is synchronisation at 16
#: workers and 100 Mb/s (0.88) gives it by t = l + 2nS/B, within a hundredth.
BATCH_S = 1.0

#: What the switch was throttled to (§6), in Mb/s.
RATES_MBIT = (100.0, 1000.0)
SIZES = tuple(range(1, 17))
EPOCHS = (10, 20, 30)

#: The paper names no learning rate, momentum or weight decay; these are the defaults of Dlib, which it uses.
LEARNING_RATE = 0.01
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4

#: No lease of these experiments is late: a lease that ran out would be noise of ours in the paper's figures.
LEASE_S = 600.0
