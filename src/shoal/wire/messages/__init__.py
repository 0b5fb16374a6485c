"""The messages between nodes, as frozen values that are valid once built.

Each file has the messages of one conversation. The rules of a message (who may send it, to which role, on which stream,
at what cost) are on its class, as ``rule``; all routing and access tables are derived from them.
"""

from __future__ import annotations

from shoal.wire.messages.aggregation import *
from shoal.wire.messages.base import *
from shoal.wire.messages.contributions import *
from shoal.wire.messages.flock import *
from shoal.wire.messages.job import *
from shoal.wire.messages.lease import *
from shoal.wire.messages.managers import *
from shoal.wire.messages.membership import *
from shoal.wire.messages.metrics import *
from shoal.wire.messages.model import *
from shoal.wire.messages.offload import *
from shoal.wire.messages.operator import *
from shoal.wire.messages.sealing import *
from shoal.wire.messages.session import *
