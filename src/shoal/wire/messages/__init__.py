"""What nodes say to each other, as frozen values that are valid once built. Knows no bytes and no sockets.

A file a conversation. The rules of a message (who may say it, to which role, on which stream, at what cost) stand on
its class, as ``rule``; every table is made of them.
"""

from __future__ import annotations

from shoal.wire.messages.aggregation import *
from shoal.wire.messages.base import *
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
