"""Well-known sets of examples as numpy arrays, for tasks' ``examples``. No torch."""

from shoal.data.digits import mnist
from shoal.data.drebin import permissions

__all__ = ["mnist", "permissions"]
