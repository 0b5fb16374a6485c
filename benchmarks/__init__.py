"""What is claimed, measured: one module a benchmark, each a command that ends with one line of JSON."""

from testbed.real_data import use_data_beside_checkout

use_data_beside_checkout()
