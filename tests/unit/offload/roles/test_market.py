"""A client, its pools and their executors: one story each."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from market import MEANS, Market, at_home, one_entry

from shoal.errors import Misuse
from shoal.offload.kinds import digest_of
from shoal.offload.roles.client import Client, network_name
from shoal.offload.roles.executor import Executor
from shoal.offload.roles.product import Policy
from shoal.roles.actions import Multiply, Send
from shoal.roles.events import Multiplied, ProductUnwanted, Received, TimerFired
from shoal.wire.messages import Lend, Measure, Message, NeedOperand, RightOperand, TileResult, TileTask

PLAIN = Policy(tile_operations=64 * 30 * 20)


def sides(rows: int = 500, inner: int = 30, columns: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    left = chance.standard_normal((rows, inner), dtype=np.float32)
    return left, chance.standard_normal((inner, columns), dtype=np.float32)


def test_a_product_from_a_pool_has_the_bits_it_has_at_home() -> None:
    market = Market(PLAIN, pools={"pond": 3}).open()
    left, right = sides()
    result = market.multiply(left, right)
    assert result.tobytes() == at_home(left, right, PLAIN).tobytes()
    report = market.client.report
    assert (report.products, report.sent, report.liars) == (1, 1, ())
    assert report.operations_away == 500 * 30 * 20
    assert report.operations_home < report.operations_away
    assert market.client.network == "1-1-3"


def test_a_right_side_crosses_each_link_once_a_version() -> None:
    market = Market(PLAIN, pools={"pond": 3}).open()
    left, right = sides()
    for number in (1, 2, 3):
        market.multiply(left, right, number=number)
    rights = [to for to, message in market.sent if isinstance(message, RightOperand)]
    assert sorted(rights) == ["pond", "pond-0", "pond-1", "pond-2"]
    market.multiply(left, right + 1, number=4)
    assert len([to for to, message in market.sent if isinstance(message, RightOperand)]) == 8


def test_work_is_shared_in_proportion_to_speed() -> None:
    market = Market(Policy(tile_operations=32 * 60 * 50), pools={"pond": 3}).open()
    for name, speed in (("pond-0", 4e7), ("pond-1", 1e7), ("pond-2", 1e7)):
        market.devices[name].speed = speed
    left, right = sides(4000, 60, 50)
    market.multiply(left, right)
    done = {view.node: view.tasks for view in market.role("pond").views()}
    assert sum(done.values()) == 125
    # 4 : 1 : 1 of 125 is 83 : 21 : 21; what is on its way takes some of the edge off.
    assert 60 <= done["pond-0"] <= 100
    assert min(done["pond-1"], done["pond-2"]) >= 8


def test_a_liar_is_caught_named_and_asked_no_more() -> None:
    market = Market(PLAIN, pools={"pond": 3}).open()
    market.devices["pond-1"].lie = one_entry
    left, right = sides()
    assert market.multiply(left, right).tobytes() == at_home(left, right, PLAIN).tobytes()
    assert market.client.report.liars == ("pond/pond-1",)
    assert market.liars_told("pond") == {"pond-1": 1}
    view = next(view for view in market.role("pond").views() if view.node == "pond-1")
    assert view.state == "excluded"
    assert "caught by client" in view.reason
    given = len([m for to, m in market.sent if to == "pond-1" and isinstance(m, TileTask)])
    market.multiply(left, right, number=2)
    assert len([m for to, m in market.sent if to == "pond-1" and isinstance(m, TileTask)]) == given


def test_a_broker_that_restarts_hears_again_who_was_caught() -> None:
    market = Market(PLAIN, pools={"pond": 3}).open()
    market.devices["pond-1"].lie = one_entry
    left, right = sides()
    market.multiply(left, right)
    market.kill_broker("pond", back_after_s=1.0)
    assert market.liars_told("pond") == {}
    market.multiply(left, right, number=2)
    assert market.liars_told("pond") == {"pond-1": 1}
    assert market.client.report.liars == ("pond/pond-1",)


def test_two_liars_that_agree_are_outvoted_by_the_check() -> None:
    policy = dataclasses.replace(PLAIN, verify="replicate")
    market = Market(policy, pools={"pond": 5}).open()
    for name in ("pond-0", "pond-3"):
        market.devices[name].lie = one_entry
    left, right = sides()
    assert market.multiply(left, right).tobytes() == at_home(left, right, policy).tobytes()
    assert set(market.client.report.liars) == {"pond/pond-0", "pond/pond-3"}


def test_with_fewer_executors_than_replicas_those_there_are_are_checked() -> None:
    policy = dataclasses.replace(PLAIN, verify="replicate")
    market = Market(policy, pools={"pond": 2}).open()
    market.devices["pond-0"].lie = one_entry
    left, right = sides()
    assert market.multiply(left, right).tobytes() == at_home(left, right, policy).tobytes()
    assert market.client.report.liars == ("pond/pond-0",)


def test_a_replica_that_is_answered_late_counts_when_the_last_one_is_refused() -> None:
    """Found by chance: two executors left after three had a tile each, and the client ended with a StopIteration."""
    policy = dataclasses.replace(PLAIN, verify="replicate")
    market = Market(policy, pools={"pond": 3}).open()
    left, right = sides(rows=1)
    market.want(1, left, right)
    first, second, third = sorted(market.client._asks, key=lambda number: market.client._asks[number].side)
    told = market.client._pools["pond"].told
    assert told is not None

    def says(message: Message) -> None:
        market._deliver("client", Received(sender="pond", message=message))

    says(dataclasses.replace(told, executors=1))
    says(TileResult(task=first, reason="nobody may do it"))
    market.now_s += 1.0
    market._deliver("client", TimerFired(name="look"))
    says(TileResult(task=third, executor="pond-2", tensors={"result": at_home(left, right, policy)}))
    says(TileResult(task=second, reason="nobody may do it"))
    market.run(until=lambda: 1 in market.delivered)
    assert market.delivered[1].tobytes() == at_home(left, right, policy).tobytes()


def test_no_pool_sees_both_halves_of_a_mask() -> None:
    policy = dataclasses.replace(PLAIN, privacy="mask")
    market = Market(policy, pools={"pond": 2, "lake": 2}).open()
    left, right = sides()
    first = market.multiply(left, right)
    np.testing.assert_allclose(first, left @ right, rtol=1e-3, atol=1e-3)
    kinds = {
        (to, message.kind) for to, message in market.sent if isinstance(message, TileTask) and to in ("pond", "lake")
    }
    assert {kind for _, kind in kinds} == {"mask", "share"}
    # Either pool may have halves of different tiles; of the same tile it has one. A seed is 16 bytes of its own.
    halves: dict[str, set[str]] = {"pond": set(), "lake": set()}
    for to, message in market.sent:
        if isinstance(message, TileTask) and to in halves:
            assert message.kind in ("mask", "share")
            assert "left" not in message.tensors or message.tensors["left"].dtype == np.uint32
    again = Market(policy, pools={"pond": 3, "lake": 1}, seed=5).open()
    assert again.multiply(left, right).tobytes() == first.tobytes(), "masks cancel to the last bit"


def test_a_liar_among_masks_is_told_from_the_other_half() -> None:
    policy = dataclasses.replace(PLAIN, privacy="mask")
    left, right = sides()
    honest = Market(policy, pools={"pond": 3, "lake": 3}).open().multiply(left, right)
    for liar in ("pond-1", "lake-2"):
        market = Market(policy, pools={"pond": 3, "lake": 3}, seed=3).open()
        market.devices[liar].lie = one_entry
        assert market.multiply(left, right).tobytes() == honest.tobytes()
        assert market.client.report.liars == (f"{liar[:4]}/{liar}",)


def test_a_shuffled_product_is_put_back() -> None:
    policy = dataclasses.replace(PLAIN, privacy="shuffle")
    market = Market(policy, pools={"pond": 3}).open()
    left, right = sides()
    np.testing.assert_allclose(market.multiply(left, right), left @ right, rtol=1e-4, atol=1e-4)
    sent = next(m.tensors["right"] for to, m in market.sent if isinstance(m, RightOperand) and to == "pond-0")
    assert sent.tobytes() != right.tobytes()


def test_a_product_of_two_secrets_stays_at_home() -> None:
    policy = dataclasses.replace(PLAIN, privacy="mask")
    market = Market(policy, pools={"pond": 1, "lake": 1}).open()
    left, right = sides()
    assert market.multiply(left, right, secret="both").tobytes() == at_home(left, right, policy).tobytes()
    assert not [message for _, message in market.sent if isinstance(message, TileTask | RightOperand)]
    assert market.client.report.sent == 0
    assert any("both sides are secret" in record.reason for _, record in market.records)


def test_numbers_that_no_mask_hides_are_not_sent() -> None:
    market = Market(dataclasses.replace(PLAIN, privacy="mask"), pools={"pond": 1, "lake": 1}).open()
    left, right = sides()
    left[3, 3] = np.inf
    market.multiply(left, right)
    assert not [message for _, message in market.sent if isinstance(message, TileTask)]


def test_without_any_pool_it_is_done_at_home_after_a_while_and_then_at_once() -> None:
    market = Market(PLAIN, pools={"pond": 0}, wait_s=10.0)
    left, right = sides()
    assert market.multiply(left, right).tobytes() == at_home(left, right, PLAIN).tobytes()
    assert 10.0 <= market.now_s < 11.0
    assert any("it has no executor now" in record.reason for _, record in market.records)
    began_s = market.now_s
    market.multiply(left, right, number=2)
    assert market.now_s - began_s < 1.0


def test_tiles_larger_than_executors_take_are_done_at_home() -> None:
    market = Market(PLAIN, pools={"pond": 2}).open()
    left, right = sides(64, 16384, 2)
    assert MEANS.task_max_bytes < 64 * 16384 * 4
    result = market.multiply(left, right)
    np.testing.assert_allclose(result, left @ right, rtol=1e-2, atol=1e-2)
    assert any("larger than the executors there take" in record.reason for _, record in market.records)


def test_an_executor_that_stalls_is_overtaken() -> None:
    market = Market(PLAIN, pools={"pond": 3}).open()
    left, right = sides()
    market.multiply(left, right)
    market.freeze("pond-0", for_s=1e9)
    began_s = market.now_s
    assert market.multiply(left, right, number=2).tobytes() == at_home(left, right, PLAIN).tobytes()
    assert market.now_s - began_s < 10.0
    assert any(record.kind == "task.reissued" for _, record in market.records)
    assert market.client.report.liars == ()


def test_what_is_still_computed_of_one_product_is_not_taken_for_the_next() -> None:
    market = Market(PLAIN, pools={"pond": 0}, wait_s=0.0)
    (left, right), (other, _) = sides(), sides(seed=1)
    market.want(1, left, right)
    assert market.client._at_home is not None
    market._deliver("client", ProductUnwanted(product=1))
    assert market.multiply(other, right, number=2).tobytes() == at_home(other, right, PLAIN).tobytes()
    assert 1 not in market.delivered


def test_a_pool_does_not_answer_for_another() -> None:
    market = Market(dataclasses.replace(PLAIN, verify="none"), pools={"pond": 1, "lake": 1}).open()
    left, right = sides()
    market.want(1, left, right)
    asked = {number: ask for number, ask in market.client._asks.items() if ask.pool == "pond"}
    for number in asked:
        forged = TileResult(task=number, executor="lake-0", tensors={"result": np.zeros((64, 20), dtype=np.float32)})
        market._deliver("client", Received(sender="lake", message=forged))
    assert asked.keys() <= market.client._asks.keys()
    market.run(until=lambda: 1 in market.delivered)
    assert market.delivered[1].tobytes() == at_home(left, right, PLAIN).tobytes()


def test_masks_take_two_pools_and_no_replicas() -> None:
    with pytest.raises(Misuse, match="two pools"):
        Client(pools=("pond",), policy=Policy(privacy="mask"), secret=bytes(32))
    with pytest.raises(Misuse, match="freivalds"):
        Policy(privacy="mask", verify="replicate")
    with pytest.raises(Misuse, match="privacy is one of"):
        Policy(privacy="magic")  # type: ignore[arg-type]


def test_networks_are_named_as_in_the_thesis() -> None:
    assert network_name([3, 3]) == "1-2-3"
    assert network_name([4, 5, 6]) == "1-3-(4,5,6)"
    assert network_name([0]) == "1-1-0"


# An executor alone -----------------------------------------------------------------------------------


def task(left: np.ndarray, right: np.ndarray, *, number: int = 1, named: bool = True) -> TileTask:
    return TileTask(
        task=number,
        kind="tile",
        right=digest_of(right) if named else "",
        rows=left.shape[0],
        inner=left.shape[1],
        columns=right.shape[1],
        deadline_s=10.0,
        tensors={"left": left} if named else {"left": left, "right": right},
    )


def test_an_executor_asks_once_for_a_right_side_that_it_lacks() -> None:
    executor = Executor(broker="pond", means=MEANS)
    left, right = sides(8)
    named = digest_of(right)
    asks = executor.handle(Received(sender="pond", message=task(left, right)), 0.0)
    assert asks == [Send(to="pond", message=NeedOperand(right=named))]
    assert executor.handle(Received(sender="pond", message=task(left, right, number=2)), 0.0) == []
    actions = executor.handle(Received(sender="pond", message=RightOperand(right=named, tensors={"right": right})), 0.0)
    assert [type(action) for action in actions] == [Multiply]
    done = executor.handle(Multiplied(number=1, seconds=0.1, tensors={"result": left @ right}), 1.0)
    assert isinstance(done[0], Send)
    assert isinstance(done[0].message, TileResult)
    assert done[0].message.task == 1
    assert isinstance(done[1], Multiply), "the next of them begins"


def test_an_executor_does_not_multiply_by_what_is_not_what_its_name_says() -> None:
    executor = Executor(broker="pond", means=MEANS)
    left, right = sides(8)
    executor.handle(Received(sender="pond", message=task(left, right)), 0.0)
    wrong = RightOperand(right=digest_of(right), tensors={"right": right + 1})
    refusal = executor.handle(Received(sender="pond", message=wrong), 0.0)[-1]
    assert isinstance(refusal, Send)
    assert isinstance(refusal.message, TileResult)
    assert "not the one that was named" in refusal.message.reason


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "words"),
    [(1, 1 << 19, 1, "cut lower tiles"), (1, 1024, 1024, "right side has")],
)
def test_an_executor_refuses_what_it_cannot_hold(rows: int, inner: int, columns: int, words: str) -> None:
    executor = Executor(broker="pond", means=MEANS)
    left = np.zeros((rows, inner), dtype=np.float32)
    asked = dataclasses.replace(task(left, np.zeros((inner, 1), dtype=np.float32)), columns=columns)
    refusal = executor.handle(Received(sender="pond", message=asked), 0.0)[0]
    assert isinstance(refusal, Send)
    assert isinstance(refusal.message, TileResult)
    assert words in refusal.message.reason


def test_an_executor_says_what_it_can_when_it_is_measured() -> None:
    executor = Executor(broker="pond", means=MEANS)
    measure = Measure(number=7, rows=4, inner=4, columns=4)
    started = executor.handle(Received(sender="pond", message=measure), 0.0)[0]
    assert isinstance(started, Multiply)
    assert started.kind == "measure"
    told = executor.handle(Multiplied(number=started.number, seconds=0.5), 1.0)[0]
    expected = Lend(
        number=7,
        seconds=0.5,
        task_max_bytes=MEANS.task_max_bytes,
        rights_max_bytes=MEANS.rights_max_bytes,
    )
    assert told == Send(to="pond", message=expected)


def test_two_liars_that_agree_are_not_believed_for_want_of_a_third() -> None:
    policy = dataclasses.replace(PLAIN, verify="replicate")
    market = Market(policy, pools={"pond": 2}).open()
    for device in market.devices.values():
        device.lie = one_entry
    left, right = sides()
    assert market.multiply(left, right).tobytes() == at_home(left, right, policy).tobytes()
    assert set(market.client.report.liars) == {"pond/pond-0", "pond/pond-1"}
