"""Routers: which replica serves a request.

A router either spreads requests beforehand, knowing nothing of the replicas (``assign``), or is asked at each arrival
(``choose``), when it sees every replica as it is at that moment. Draws are keyed by the request, so that changing the
policy or k sends no request elsewhere unless loads differ.
"""

import itertools
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from draftcast.kernels.arrays import IntArray
from draftcast.sim.compiled.random_streams import Stream, request_uniforms
from draftcast.sim.workload.request_table import RequestTable

# Prefix affinity gives way to balance when a replica has this many requests more than the least loaded one and this
# many times its load; SGLang's cache-aware router works by the same two thresholds.
AFFINITY_MAX_EXCESS_REQUESTS = 32
AFFINITY_MAX_RATIO = 1.5


class Router:
    """Base of all routers; ``is_static`` says which of the two methods is used."""

    name: ClassVar[str]
    is_static: ClassVar[bool] = False
    compares: ClassVar[int | None] = None  # replicas, drawn for each request, whose least loaded gets it; None: all

    def __init__(self, table: RequestTable, replicas: int, seed: int) -> None:
        self.table = table
        self.replicas = replicas
        self.seed = seed

    def assign(self) -> IntArray:
        """Replica of every request, shape [n], known beforehand."""
        raise NotImplementedError

    def choose(self, request: int, loads: Sequence[int]) -> int:
        """Replica for one request; ``loads`` holds each replica's running and waiting requests."""
        raise NotImplementedError


class RoundRobin(Router):
    """Request i goes to replica i mod R."""

    name = "round_robin"
    is_static = True
    compares = 1

    def assign(self) -> IntArray:
        return np.arange(len(self.table), dtype=np.int64) % self.replicas


class Random(Router):
    """Each request goes to a uniformly drawn replica."""

    name = "random"
    is_static = True
    compares = 1

    def assign(self) -> IntArray:
        draws = request_uniforms(self.seed, Stream.ROUTER, len(self.table))
        return (draws * self.replicas).astype(np.int64)


class LeastLoaded(Router):
    """The replica with the fewest running and waiting requests, the first of equals."""

    name = "least_loaded"

    def choose(self, request: int, loads: Sequence[int]) -> int:
        return min(range(self.replicas), key=lambda r: loads[r])


class PowerOfTwo(Router):
    """The less loaded of two drawn replicas (Mitzenmacher, IEEE TPDS 12(10), 2001)."""

    name = "power_of_two"
    compares = 2

    def __init__(self, table: RequestTable, replicas: int, seed: int) -> None:
        super().__init__(table, replicas, seed)
        n = len(table)
        self._first = (request_uniforms(seed, Stream.ROUTER, n) * replicas).astype(np.int64)
        step = 1 + (request_uniforms(seed, Stream.ROUTER, n, 1) * max(replicas - 1, 1)).astype(np.int64)
        self._second = (self._first + step) % replicas

    def choose(self, request: int, loads: Sequence[int]) -> int:
        first, second = int(self._first[request]), int(self._second[request])
        return second if loads[second] < loads[first] else first


class PrefixAffinity(Router):
    """The replica that was sent the longest prefix of the request; without one, or if it is crowded, the least loaded.

    The router remembers what it sent, not what was evicted since.
    """

    name = "prefix_affinity"

    def __init__(self, table: RequestTable, replicas: int, seed: int) -> None:
        super().__init__(table, replicas, seed)
        self._holder: dict[int, int] = {}

    def choose(self, request: int, loads: Sequence[int]) -> int:
        least = min(range(self.replicas), key=lambda r: loads[r])
        ids = self.table.prefix_ids(request)
        # Equal ids are equal prefixes, so the last known id is the longest prefix.
        holder = next((self._holder[prefix] for prefix in reversed(ids) if prefix in self._holder), least)
        excess = loads[holder] - loads[least]
        crowded = excess > AFFINITY_MAX_EXCESS_REQUESTS and loads[holder] > AFFINITY_MAX_RATIO * loads[least]
        chosen = least if crowded else holder
        self._holder |= dict.fromkeys(ids, chosen)
        return chosen


ROUTERS: dict[str, type[Router]] = {r.name: r for r in (RoundRobin, Random, LeastLoaded, PowerOfTwo, PrefixAffinity)}


def cluster_capacity(router: str, rates: Sequence[float]) -> float:
    """Requests per second that replicas complete behind a router that each complete ``rates`` when saturated.

    A set of replicas gets at least the requests whose compared ones all lie inside it, and falls behind where these are
    more than it completes (Foss and Chernova, Queueing Systems 29, 1998): so with equal shares the slowest replica
    decides, with a choice of all their sum.
    """
    n = len(rates)
    compared = min(ROUTERS[router].compares or n, n)
    if min(rates) == max(rates):
        return n * rates[0]
    slowest = list(itertools.accumulate(sorted(rates)))
    return min(slowest[s - 1] * math.comb(n, compared) / math.comb(s, compared) for s in range(compared, n + 1))
