"""The counter-based random numbers: fixed values, uniformity, independence of streams."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy import stats

from draftcast.sim.compiled.random_streams import (
    Stream,
    mix64,
    mix64_array,
    replication_seed,
    request_keys,
    request_uniforms,
    stream_key,
    uniform,
    uniform_array,
)

ALPHA = 1e-4  # the seeds are fixed: a failure means the mixer changed, not bad luck


def test_splitmix64_known_values() -> None:
    # first outputs of splitmix64 seeded with 0, from the reference implementation (Vigna, splitmix64.c)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    golden = np.uint64(0x9E3779B97F4A7C15)
    states = np.arange(1, 4, dtype=np.uint64) * golden
    assert [int(x) for x in mix64_array(states)] == expected
    assert [int(mix64(x)) for x in states] == expected


def test_values_are_the_same_in_every_process() -> None:
    code = (
        "from draftcast.sim.compiled.random_streams import *\n"
        "k = request_keys(7, Stream.ACCEPT, 3)\n"
        "print([int(x) for x in k], uniform(k[2], 5).hex(), replication_seed(7, 3))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    keys = request_keys(7, Stream.ACCEPT, 3)
    assert out == f"{[int(x) for x in keys]} {uniform(keys[2], 5).hex()} {replication_seed(7, 3)}"
    assert out == KNOWN


KNOWN = "[12215916690388530107, 9581529660006463706, 4449128876308246592] 0x1.1c9f574fc1d47p-1 6837271224818603862"


def test_numpy_twin_is_bit_identical_and_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keys = request_keys(2**64 - 1, Stream.MATCH, 50)
        positions = np.arange(40)
        table = uniform_array(keys[:, None], positions[None, :])
        for i in (0, 7, 49):
            for j in (0, 1, 39):
                assert table[i, j] == uniform(keys[i], j)
        assert uniform(keys[0], np.int32(3)) == table[0, 3]
    assert table.min() >= 0.0
    assert table.max() < 1.0


@pytest.mark.parametrize("stream", list(Stream))
def test_uniform_over_requests_and_over_positions(stream: Stream) -> None:
    over_requests = request_uniforms(1, stream, 100_000)
    over_positions = uniform_array(request_keys(1, stream, 1), np.arange(100_000))
    for draws in (over_requests, over_positions):
        counts = np.bincount((draws * 100).astype(int), minlength=100)
        assert stats.chisquare(counts).pvalue > ALPHA
        pairs = np.bincount((draws[:-1] * 10).astype(int) * 10 + (draws[1:] * 10).astype(int), minlength=100)
        assert stats.chisquare(pairs).pvalue > ALPHA  # neighbours are independent, too


def test_streams_seeds_and_requests_are_independent() -> None:
    n = 20_000
    columns = [request_uniforms(seed, stream, n) for seed in (0, 1, 2) for stream in Stream]
    columns += [request_uniforms(0, Stream.ACCEPT, n, position) for position in (1, 2, 3)]
    correlation = np.corrcoef(np.array(columns))
    np.fill_diagonal(correlation, 0.0)
    assert np.abs(correlation).max() < 5 / np.sqrt(n)
    keys = np.concatenate([request_keys(seed, stream, 2_000) for seed in range(20) for stream in Stream])
    assert len(np.unique(keys)) == len(keys)


def test_keys_do_not_depend_on_the_number_of_requests() -> None:
    assert (request_keys(3, Stream.LENGTHS, 1000)[:10] == request_keys(3, Stream.LENGTHS, 10)).all()
    assert request_keys(3, Stream.LENGTHS, 0).shape == (0,)


def test_replication_seeds() -> None:
    seeds = [replication_seed(42, r) for r in range(1000)]
    assert seeds[0] == 42
    assert len(set(seeds)) == 1000
    assert all(0 <= s < 2**63 for s in seeds)
    assert stream_key(-1, 0) == stream_key(2**64 - 1, 0)
