"""What MDLdroid's experiments have in common: the network, the rates, the crews. Values only."""

from __future__ import annotations

import math
from pathlib import Path

from papers.harness.results import Folder

#: Where measured rows are kept.
RESULTS = Folder(Path(__file__).resolve().with_name("results"))

#: Windows of 128 moments (2.56 s at 50 Hz) of 9 channels, six activities (Table 1, HAR).
CHANNELS = 9
MOMENTS = 128
CLASSES = 6

#: LeNet as DL4J's own has it (20 and 50 filters of 5, pools of 2), along time alone: 124, 62, 58, 29 moments. Its dense
#: layer of 500 is 128 here. The paper gives no sizes.
FILTERS = (20, 50)
REACH = 5
HIDDEN = 128
_LEFT = ((MOMENTS - REACH + 1) // 2 - REACH + 1) // 2
SHAPES: tuple[tuple[int, ...], ...] = (
    (FILTERS[0], CHANNELS, REACH),
    (FILTERS[0],),
    (FILTERS[1], FILTERS[0], REACH),
    (FILTERS[1],),
    (HIDDEN, FILTERS[1] * _LEFT),
    (HIDDEN,),
    (CLASSES, HIDDEN),
    (CLASSES,),
)
PARAMETERS = sum(math.prod(shape) for shape in SHAPES)

#: Neither is in the paper. The same for every method.
BATCH = 32
RATE = 0.05

#: §4.5.3: 1-E20, one aggregation an epoch, twenty epochs.
EPOCHS = 20

CREWS = (3, 6, 9)

#: The CNN-LSTM of §2: 11.61 million parameters, 46.4 MB, of which a phone cannot hold eight more.
LARGE_PARAMETERS = 11_610_000
