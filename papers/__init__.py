"""Papers reproduced: each folder runs one paper's experiments on Shoal and sets its figures beside the paper's."""

from testbed.real_data import use_data_beside_checkout

use_data_beside_checkout()
