"""Well-known sets of examples as numpy arrays, for tasks' ``examples``. No torch."""

from shoal.data.digits import mnist
from shoal.data.drebin import permissions
from shoal.data.local import local_folder

__all__ = ["local_folder", "mnist", "permissions"]
