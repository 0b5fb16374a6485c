"""DCL's own tasks, a feature's column by its row of weights, summed at home; and their cost.

Task j is (I[:, j], W[j, :]), its result their outer product, and the layer is the sum of all of them in an order. It is
here to be measured: row tiles (``tiling``) move two orders of magnitude fewer bytes and leave nothing to sum.

Legend, as in the thesis: I is a x b, W is b x c, D bytes an element, s schedulers, e executors for each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse
from shoal.offload.kinds import execute

#: D of a float32.
FLOAT_BYTES = 4


def task(left: np.ndarray, right: np.ndarray, feature: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the column and the row that are sent for one feature. (DCL §3.4)"""
    return np.ascontiguousarray(left[:, feature]), np.ascontiguousarray(right[feature, :])


def at_home(left: np.ndarray, right: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The same layer with nobody's help, bit for bit: what a distributed one is held against. (DCL §4.3)"""
    if left.shape[1] != right.shape[0]:
        raise Misuse(f"{left.shape} times {right.shape}: inner sides differ")
    if left.shape[1] == 0:
        raise Misuse("a layer has at least one feature")
    features = order.tolist()
    if sorted(features) != list(range(left.shape[1])):
        raise Misuse(f"an order of {len(features)} does not name each of {left.shape[1]} features once")
    # One at a time: all outer products at once are b times the layer.
    total = execute(*task(left, right, features[0]))
    for feature in features[1:]:
        total += execute(*task(left, right, feature))
    return total


# What crosses the wire ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class OuterTraffic:
    """Bytes of one node of each role while one layer is computed."""

    analyst: float
    scheduler: float
    executor: float


def issued_bytes(a: int, b: int, c: int, *, element_bytes: int = FLOAT_BYTES) -> int:
    """T = D(ab + bc): each value and each weight is sent once. (DCL 4.1 prints D·acb; Table 4.1 has this.)"""
    return element_bytes * (a * b + b * c)


def returned_bytes(a: int, b: int, c: int, *, element_bytes: int = FLOAT_BYTES) -> int:
    """Z = D·acb: an outer product of a x c for each of b features. (DCL 4.4 to 4.6, for all features.)"""
    return element_bytes * a * c * b


def issued(
    a: int, b: int, c: int, *, schedulers: int, executors_each: int, element_bytes: int = FLOAT_BYTES
) -> OuterTraffic:
    """U = T/s and V = U/e. (DCL 4.2, 4.3; 4.2 prints O for T.)"""
    return _shared(issued_bytes(a, b, c, element_bytes=element_bytes), schedulers, executors_each)


def returned(
    a: int, b: int, c: int, *, schedulers: int, executors_each: int, element_bytes: int = FLOAT_BYTES
) -> OuterTraffic:
    """Return the average bytes that come back. An executor returns complete outer products. (DCL 4.4 to 4.6)"""
    return _shared(returned_bytes(a, b, c, element_bytes=element_bytes), schedulers, executors_each)


def returned_as_printed_bytes(
    a: int, c: int, *, schedulers: int, executors_each: int, element_bytes: int = FLOAT_BYTES
) -> int:
    """Z = D·ac·e·s: one outer product an executor, whatever the number of features. (DCL 4.4 to 4.6, as they stand)"""
    return element_bytes * a * c * executors_each * schedulers


def returned_in_table_bytes(
    a: int, b: int, c: int, *, schedulers: int, executors_each: int, element_bytes: int = FLOAT_BYTES
) -> int:
    """Every executor with as many outer products as the busiest: what Table 4.1 holds. (DCL Table 4.1)"""
    executors = schedulers * executors_each
    return element_bytes * a * c * math.ceil(b / executors) * executors


def _shared(whole: int, schedulers: int, executors_each: int) -> OuterTraffic:
    if schedulers < 1 or executors_each < 1:
        raise Misuse(f"{schedulers} schedulers with {executors_each} executors each: at least one of both")
    return OuterTraffic(analyst=whole, scheduler=whole / schedulers, executor=whole / schedulers / executors_each)


# What is computed --------------------------------------------------------------------------------------------------


def layer_operations(a: int, b: int, c: int) -> int:
    """2abc: a multiplication and an addition for each term, as a product is usually counted. (DCL 4.7)"""
    return 2 * a * b * c


def executor_operations(a: int, b: int, c: int) -> int:
    """abc multiplications, all executors together. (DCL §3.4)"""
    return a * b * c


def analyst_operations(a: int, b: int, c: int) -> int:
    """(b - 1)ac additions: b outer products become one matrix. (DCL §3.5)"""
    return (b - 1) * a * c


def analyst_share(a: int, b: int, c: int) -> float:
    """The analyst's part of the layer's operations, (b-1)/2b. (DCL §4.5 says 0.02 %.)"""
    return analyst_operations(a, b, c) / layer_operations(a, b, c)
