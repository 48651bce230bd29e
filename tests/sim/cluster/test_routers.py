"""Routers: where requests go, by hand and by their defining properties."""

from __future__ import annotations

import numpy as np

from draftcast.sim.cluster.routers import ROUTERS
from draftcast.sim.workload.request_table import RequestTable


def table(n: int, hash_ids: list[list[int]] | None = None) -> RequestTable:
    extra = {}
    if hash_ids is not None:
        extra = {
            "hash_ids": np.array([h for ids in hash_ids for h in ids], np.int64),
            "hash_offsets": np.concatenate([[0], np.cumsum([len(ids) for ids in hash_ids])]).astype(np.int64),
            "hash_block_tokens": 16,
        }
    return RequestTable.from_columns(np.full(n, 64), np.full(n, 8), np.arange(n, dtype=float), **extra)


def test_round_robin_deals_in_turn() -> None:
    assert ROUTERS["round_robin"](table(7), 3, seed=0).assign().tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_random_is_uniform_and_keyed_by_seed() -> None:
    counts = np.bincount(ROUTERS["random"](table(30_000), 3, seed=1).assign(), minlength=3)
    # Binomial with p = 1/3: four standard deviations of 30,000 draws are 327.
    assert (np.abs(counts - 10_000) < 330).all()
    first = ROUTERS["random"](table(50), 4, seed=1).assign()
    assert (first == ROUTERS["random"](table(50), 4, seed=1).assign()).all()
    assert (first != ROUTERS["random"](table(50), 4, seed=2).assign()).any()
    # A request's draw does not depend on how many others there are.
    assert (ROUTERS["random"](table(20), 4, seed=1).assign() == first[:20]).all()


def test_least_loaded_takes_the_first_of_the_emptiest() -> None:
    router = ROUTERS["least_loaded"](table(3), 3, seed=0)
    assert router.choose(0, [2, 1, 1]) == 1
    assert router.choose(1, [0, 0, 0]) == 0
    assert router.choose(2, [5, 4, 3]) == 2


def test_power_of_two_compares_two_different_replicas() -> None:
    n, replicas = 20_000, 5
    router = ROUTERS["power_of_two"](table(n), replicas, seed=3)
    # All load on one replica: only a request whose both draws were that replica could go there, and draws differ.
    for crowded in range(replicas):
        loads = [0] * replicas
        loads[crowded] = 1
        assert all(router.choose(i, loads) != crowded for i in range(500))
    # One empty replica among full ones is found when it is one of the two: probability 2/5.
    hits = sum(router.choose(i, [0, 9, 9, 9, 9]) == 0 for i in range(n))
    assert abs(hits / n - 0.4) < 4 * np.sqrt(0.4 * 0.6 / n)


def test_power_of_two_with_one_replica() -> None:
    assert ROUTERS["power_of_two"](table(1), 1, seed=0).choose(0, [7]) == 0


def test_prefix_affinity_follows_the_longest_known_prefix() -> None:
    ids = [[1, 2, 3], [9], [1, 2, 8], [1, 2, 3, 4], [7]]
    router = ROUTERS["prefix_affinity"](table(5, ids), 2, seed=0)
    assert router.choose(0, [0, 0]) == 0  # nothing known: the least loaded
    assert router.choose(1, [1, 0]) == 1
    assert router.choose(2, [3, 1]) == 0  # shares 1, 2 with the first, which went to 0
    assert router.choose(3, [4, 1]) == 0
    assert router.choose(4, [5, 1]) == 1  # unknown: the least loaded


def test_prefix_affinity_gives_way_to_balance() -> None:
    router = ROUTERS["prefix_affinity"](table(4, [[1], [1], [1], [1]]), 2, seed=0)
    assert router.choose(0, [0, 0]) == 0
    assert router.choose(1, [32, 0]) == 0  # 32 more is still allowed
    assert router.choose(2, [33, 0]) == 1  # 33 more and over 1.5 times: the least loaded
    assert router.choose(3, [133, 100]) == 1  # replica 1 holds the prefix since


def test_prefix_affinity_without_hash_ids_is_least_loaded() -> None:
    router = ROUTERS["prefix_affinity"](table(2), 3, seed=0)
    assert router.choose(0, [2, 0, 1]) == 1
