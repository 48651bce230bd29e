"""Paged KV blocks: allocation, and prefix caching by block hashes with LRU eviction.

Follows vLLM 0.32's and 0.33's ``v1/core/kv_cache_manager.py``, ``single_type_kv_cache_manager.py`` (full attention) and
``block_pool.py``: blocks without a hash are reused last-in first-out, blocks with a hash least recently used
first, equal hashes may sit in several blocks, and a hit pins its blocks. Without prefix caching no step reads a
block's identity, so they are only counted, also those besides the context's (``fixed_blocks``: states of linear
attention layers; ``window_groups``: groups of sliding or chunked layers, which give back blocks behind their window).

A block's hash key is the trace's hash id and the block's place in it where the trace gives hash ids
(``num_keys_per_hash`` KV blocks each), the text it is of and its place there where requests share texts (system
prompts, sessions), and a key of the request's own otherwise, which only the request itself can hit, after a preemption.
Where a hash also covers tokens behind its block (``hash_lookahead``, vLLM 0.33), the key is of both.
"""

import numpy as np
from numba import njit

from draftcast.sim.compiled.random_streams import mix64
from draftcast.sim.cost.step_time import CHUNKED
from draftcast.sim.state.engine import BLOCK, Array, EngineState

# Keys of blocks that only their own request can hit start here; trace keys and then those of texts stay below.
OWN_KEY = np.int64(1) << np.int64(60)
TEXT_KEY = np.int64(1) << np.int64(59)
# Keys of a trace's block together with the next one: 58 bits of both.
PAIR_KEY = np.int64(1) << np.int64(58)
OWN_KEY_BLOCKS = np.int64(1) << np.int64(22)
EMPTY_SLOT = np.int64(0)
# twin of a hashed block that the table does not list: only its own request could ask for it, and does not.
UNLISTED = -2


@njit(cache=True, forceinline=True)
def blocks_for(tokens: int, block_size: int) -> int:
    """KV blocks that hold ``tokens`` tokens."""
    return (tokens + block_size - 1) // block_size


def free_list(num_blocks: int) -> Array:
    """``BLOCK[num_blocks + 1]``: all free, in order, none hashed; block 0 is vLLM's null block and never handed out."""
    blocks = np.zeros(num_blocks + 1, BLOCK)
    blocks["next"][1:-1], blocks["next"][-1] = np.arange(2, num_blocks + 1), min(num_blocks, 1)
    blocks["prev"][2:], blocks["prev"][1:2] = np.arange(1, num_blocks), num_blocks
    return blocks


# ---- hash table: key -> first block with that key; twins follow in order of insertion ----


@njit(cache=True, forceinline=True)
def _home(key: int, mask: int) -> int:
    x = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return int(np.int64((x >> np.uint64(24)) & np.uint64(mask)))


@njit(cache=True)
def _find(s: EngineState, key: int) -> int:
    """Slot of ``key``, or -1 - the empty slot where it would go."""
    mask = s.cache_key.size - 1
    slot = _home(key, mask)
    while s.cache_key[slot] != EMPTY_SLOT:
        if s.cache_key[slot] == key:
            return slot
        slot = (slot + 1) & mask
    return -1 - slot


@njit(cache=True)
def _insert(s: EngineState, key: int, block: int) -> None:
    s.blocks[block].key = key
    s.blocks[block].twin = -1
    slot = _find(s, key)
    if slot < 0:
        slot = -1 - slot
        s.cache_key[slot] = key
        s.cache_block[slot] = block
        return
    last = s.cache_block[slot]
    while s.blocks[last].twin >= 0:
        last = s.blocks[last].twin
    s.blocks[last].twin = block


@njit(cache=True)
def _evict(s: EngineState, block: int) -> None:
    """Forget the block's hash; linear probing's gap is closed by shifting back."""
    key = s.blocks[block].key
    s.blocks[block].key = 0
    if s.blocks[block].twin == UNLISTED:
        return
    hole = _find(s, key)
    before = s.cache_block[hole]
    twin = s.blocks[block].twin
    if before != block:
        while s.blocks[before].twin != block:
            before = s.blocks[before].twin
        s.blocks[before].twin = twin
        return
    if twin >= 0:
        s.cache_block[hole] = twin
        return
    mask = s.cache_key.size - 1
    probe = (hole + 1) & mask
    while s.cache_key[probe] != EMPTY_SLOT:
        home = _home(s.cache_key[probe], mask)
        if ((probe - home) & mask) >= ((probe - hole) & mask):
            s.cache_key[hole] = s.cache_key[probe]
            s.cache_block[hole] = s.cache_block[probe]
            hole = probe
        probe = (probe + 1) & mask
    s.cache_key[hole] = EMPTY_SLOT


@njit(cache=True)
def block_hash(s: EngineState, i: int, index: int) -> int:
    """Key of block ``index`` of request ``i``, and of the tokens behind it that its hash covers."""
    c = s.config[0]
    r = s.requests[i]
    end = (index + 1) * c.block_size
    if c.num_keys_per_hash > 0:
        n = c.num_keys_per_hash
        at = s.hash_offsets[i] + index // n
        left = s.hash_offsets[i + 1] - at
        if end <= r.prompt and left > 0:
            if c.hash_lookahead == 0 or ((index + 1) % n != 0 and end + c.hash_lookahead <= r.prompt):
                return int(s.hash_ids[at] * n + index % n + 1)
            if left > 1 and end + c.block_size <= r.prompt:
                mixed = mix64(mix64(np.uint64(s.hash_ids[at])) ^ np.uint64(s.hash_ids[at + 1]))
                return int(PAIR_KEY + np.int64(mixed >> np.uint64(6)))
    text = r.system_text if end + c.hash_lookahead <= r.system_tokens else r.text
    if text >= 0:
        return int(TEXT_KEY + text * OWN_KEY_BLOCKS + index)
    return int(OWN_KEY + i * OWN_KEY_BLOCKS + index)


@njit(cache=True)
def find_hits(s: EngineState, i: int) -> tuple[int, int]:
    """Leading blocks of request ``i`` that are cached, and how many of them are free: adopting takes free blocks."""
    c = s.config[0]
    r = s.requests[i]
    # At least the last token is always recomputed.
    most = (r.tokens - max(c.hash_lookahead, 1)) // c.block_size
    hits = evictable = last_is_free = 0
    while hits < most:
        key = block_hash(s, i, hits)
        # Blocks of its own are listed once the request has been preempted, not before.
        slot = -1 if key >= OWN_KEY and r.preemptions == 0 else _find(s, key)
        if slot < 0:
            break
        last_is_free = int(s.blocks[s.cache_block[slot]].refs == 0)
        evictable += last_is_free
        hits += 1
    if c.drops_last_hit and hits > 0:
        return hits - 1, evictable - last_is_free
    return hits, evictable


@njit(cache=True)
def adopt_hits(s: EngineState, i: int, hits: int) -> None:
    """Pin the ``hits`` leading cached blocks for request ``i``, which holds none yet."""
    e = s.engine[0]
    r = s.requests[i]
    e.num_free_tables -= 1
    r.table = s.free_table[e.num_free_tables]
    for index in range(hits):
        block = s.cache_block[_find(s, block_hash(s, i, index))]
        if s.blocks[block].refs == 0:
            before, after = s.blocks[block].prev, s.blocks[block].next
            s.blocks[before].next = after
            s.blocks[after].prev = before
            e.free_blocks -= 1
        s.blocks[block].refs += 1
        s.block_table[r.table, index] = block
    r.num_blocks = hits
    r.num_cached = hits


@njit(cache=True, forceinline=True)
def extend(s: EngineState, i: int, tokens: int) -> bool:
    """Grow request ``i`` to hold ``tokens`` tokens; False (and nothing done) when blocks are short."""
    c = s.config[0]
    if tokens <= (s.requests[i].num_blocks - c.fixed_blocks) * c.block_size:  # usually, and told without a division
        return True
    return _take_blocks(s, i, tokens)


@njit(cache=True)
def _take_blocks(s: EngineState, i: int, tokens: int) -> bool:
    c = s.config[0]
    e = s.engine[0]
    r = s.requests[i]
    need = blocks_for(tokens, c.block_size) + c.fixed_blocks - r.num_blocks
    taken = need
    if c.window_groups > 0:
        taken += c.window_groups * (need if r.num_blocks > 0 else need - c.fixed_blocks)
    if taken > e.free_blocks:
        return False
    if c.enable_prefix_caching:
        head = c.num_gpu_blocks
        block = s.blocks[head].next
        for index in range(r.num_blocks, r.num_blocks + need):
            if s.blocks[block].key != 0:
                _evict(s, block)
            s.blocks[block].refs = 1
            s.block_table[r.table, index] = block
            block = s.blocks[block].next
        s.blocks[head].next = block
        s.blocks[block].prev = head
    e.free_blocks -= taken
    r.num_blocks += need
    return True


@njit(cache=True)
def drop_skipped(s: EngineState, i: int) -> None:
    """Give back the blocks of request ``i`` that no later token sees in layers with a window."""
    c = s.config[0]
    r = s.requests[i]
    settled = max(r.computed - r.in_flight, 0)
    window = c.sliding_window
    behind = settled // window * window if c.window_kind == CHUNKED else max(settled - window + 1, 0)
    skipped = min(behind // c.block_size, r.num_blocks - c.fixed_blocks)
    if skipped > r.skipped_blocks:
        s.engine[0].free_blocks += (skipped - r.skipped_blocks) * c.window_groups
        r.skipped_blocks = skipped


@njit(cache=True, forceinline=True)
def cache_full_blocks(s: EngineState, i: int, computed: int) -> None:
    """Hash the blocks that the first ``computed`` tokens of request ``i`` fill, as far as their hashes are known."""
    c = s.config[0]
    tokens = min(computed, s.requests[i].tokens - c.hash_lookahead)
    if tokens >= (s.requests[i].num_cached + 1) * c.block_size:
        _hash_blocks(s, i, tokens // c.block_size)


@njit(cache=True)
def _hash_blocks(s: EngineState, i: int, full: int) -> None:
    r = s.requests[i]
    for index in range(r.num_cached, full):
        key = block_hash(s, i, index)
        block = s.block_table[r.table, index]
        if key >= OWN_KEY:
            s.blocks[block].key = key
            s.blocks[block].twin = UNLISTED
        else:
            _insert(s, key, block)
    r.num_cached = full


@njit(cache=True)
def list_own_blocks(s: EngineState, i: int) -> None:
    """Make the blocks of a request that is about to be preempted findable, so that it can hit them on its return."""
    r = s.requests[i]
    for index in range(r.num_cached):
        block = s.block_table[r.table, index]
        if s.blocks[block].twin == UNLISTED:
            _insert(s, s.blocks[block].key, block)


@njit(cache=True)
def free_request(s: EngineState, i: int) -> None:
    """Give back all blocks of request ``i``: its last block is evicted first, hashed ones least recently used."""
    c = s.config[0]
    e = s.engine[0]
    r = s.requests[i]
    if c.enable_prefix_caching:
        head = c.num_gpu_blocks
        front = head  # unhashed blocks go to the front in the order they are met
        for index in range(r.num_blocks - 1, -1, -1):
            block = s.block_table[r.table, index]
            s.blocks[block].refs -= 1
            if s.blocks[block].refs > 0:
                continue
            e.free_blocks += 1
            before = front if s.blocks[block].key == 0 else s.blocks[head].prev
            after = s.blocks[before].next
            s.blocks[before].next = block
            s.blocks[block].prev = before
            s.blocks[block].next = after
            s.blocks[after].prev = block
            if s.blocks[block].key == 0:
                front = block
        if r.table >= 0:
            s.free_table[e.num_free_tables] = r.table
            e.num_free_tables += 1
            r.table = -1
    else:
        e.free_blocks += r.num_blocks
        if c.window_groups > 0 and r.num_blocks > 0:
            e.free_blocks += c.window_groups * (r.num_blocks - c.fixed_blocks - r.skipped_blocks)
            r.skipped_blocks = 0
    r.num_blocks = 0
    r.num_cached = 0
