"""Where an error of the floors below is in a scenario: their words for things become the scenario's dotted keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from draftcast.errors import CapacityError, InputError
from draftcast.files import check_memory
from draftcast.scenarios.schema import Engine, SpeculativeConfig

MODEL, DRAFT_MODEL = "engine.model", "engine.speculative_config.model"
# Of one replication, its tables and what is measured of them; by the largest resident size of runs of 100,000.
REQUEST_BYTES = 740
# What the floors below call by another name than a scenario does.
_OTHER_NAMES = {
    "mtp": MODEL,
    "draft_model": DRAFT_MODEL,
    "method": "engine.speculative_config.method",
    "draft_dtype": "engine.speculative_config.quantization",
    "draft_kv_cache_dtype": "engine.speculative_config.kv_cache_dtype",
}
# Errors about these name the model they do not go with as their file.
_NEVER_IN_A_FILE = ("tensor_parallel_size", "draft_tensor_parallel_size")


@contextmanager
def engine_keys(model: str = MODEL) -> Iterator[None]:
    """Errors about the engine, its hardware or its policy name the scenario's key; ``model`` is that of a model's."""
    with _keys(lambda key: _engine_key(key, model), _NEVER_IN_A_FILE):
        yield


@contextmanager
def workload_keys() -> Iterator[None]:
    """Errors about arrivals, lengths and classes name the scenario's key."""
    with _keys(_workload_key):
        yield


@contextmanager
def within_memory() -> Iterator[None]:
    """A run that this machine cannot hold is refused like one that the simulated device cannot."""
    try:
        yield
    except MemoryError as error:
        message = (
            f"this machine's memory does not hold the run; lower workload.num_requests ({REQUEST_BYTES} bytes each), "
            f"or cluster.replicas, engine.num_gpu_blocks, engine.max_num_seqs or max_num_batched_tokens: {error}"
        )
        raise CapacityError(message, key="workload.num_requests") from None


def check_run_memory(requests: int, replications: int) -> None:
    """Refuse a run whose requests this machine's free memory does not hold.

    Raises:
        CapacityError: with what the run takes and what is available.
    """
    what = f"{requests:,} requests x {replications} replications"
    check_memory(REQUEST_BYTES * requests * replications, what, key="workload.num_requests")


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Errors that name no file, because a scenario knows none, name this one."""
    try:
        yield
    except InputError as error:
        if error.file is not None:
            raise
        raise error.at(file=file) from None


@contextmanager
def _keys(renamed: Callable[[str], str], always: Collection[str] = ()) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        # An error in a file names that file's key.
        if error.key is None or (error.file is not None and error.key not in always):
            raise
        raise error.at(key=renamed(error.key)) from None


def _workload_key(key: str) -> str:
    if key.startswith("request "):
        return f"workload.lengths ({key})"
    return key if key.startswith(("workload.", "acceptance")) else f"workload.{key}"


def _engine_key(key: str, model: str) -> str:
    if key == "model":
        return model
    if key in _OTHER_NAMES:
        return _OTHER_NAMES[key]
    if key.startswith("policy.") and not key.startswith(("policy.name", "policy.parameters")):
        return f"policy.parameters.{key.removeprefix('policy.')}"
    if key in Engine.model_fields:
        return f"engine.{key}"
    return f"engine.speculative_config.{key}" if key in SpeculativeConfig.model_fields else key
