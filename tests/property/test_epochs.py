import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.scheduling.batches import batch_count, batch_indices, epoch_order
from shoal.scheduling.partition import cut


@given(st.integers(1, 500), st.integers(1, 80), st.integers(0, 2**70), st.integers(0, 2**40))
def test_an_epoch_is_every_example_exactly_once(examples, batch_size, seed, epoch):
    order = epoch_order(examples, seed=seed, epoch=epoch)
    batches = [batch_indices(order, batch, batch_size) for batch in range(batch_count(examples, batch_size))]
    assert sorted(np.concatenate(batches).tolist()) == list(range(examples))
    assert all(len(batch) == batch_size for batch in batches[:-1])


@given(st.integers(1, 500), st.integers(1, 80), st.integers(1, 9), st.integers(0, 9))
def test_fixed_shares_of_an_epoch_are_every_example_exactly_once(examples, batch_size, workers, epoch):
    order = epoch_order(examples, seed=0, epoch=epoch)
    shares = cut(range(batch_count(examples, batch_size)), [f"w{number}" for number in range(workers)])
    found = [batch_indices(order, batch, batch_size).tolist() for share in shares.values() for batch in share]
    assert sorted(example for batch in found for example in batch) == list(range(examples))
