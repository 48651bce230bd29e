"""A Gymnasium environment that chooses the draft length of every engine step (extra ``rl``).

An episode is one replication of a scenario: all its requests, served by one replica. Every step of the engine asks for
an action, through the same compiled functions that run built-in policies. It knows nothing of learning.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftcast.errors import ScenarioError, SimulationError
from draftcast.kernels.extras import require
from draftcast.scenarios.run.deployment import deploy
from draftcast.scenarios.run.simulate import build_replicas, front_end_s
from draftcast.scenarios.run.workload_spec import workload_spec
from draftcast.scenarios.schema import Scenario, with_values
from draftcast.sim.compiled.random_streams import replication_seed
from draftcast.sim.engine.replica import Replica
from draftcast.sim.policies.base import Policy, whole
from draftcast.sim.policies.batch import Batch, write_decision
from draftcast.sim.state.engine import STOP_DECIDE, STOP_IDLE
from draftcast.sim.workload.build_requests import build_requests, load_traces

try:
    import gymnasium
    from gymnasium import spaces
except ModuleNotFoundError:
    require("rl", "gymnasium", place=__name__)
    raise

OBSERVED = ("running", "waiting", "kv_usage", "context", "prefill", "acceptance", "drafts")


class DraftLengthEnv(gymnasium.Env[NDArray[np.float32], np.int64]):  # type: ignore[misc]  # read as Any
    """Serve a scenario's requests, choosing in each step how many drafts every request makes.

    Action: 0..num_speculative_tokens drafts, made in this step and verified in the next.

    Observation, float32 of shape [7], each in 0..1, in the order of ``OBSERVED``: requests scheduled over max_num_seqs;
    waiting over waiting + max_num_seqs; share of KV blocks in use; mean context over max_model_len; share of the
    scheduled requests that only prefill; mean share of accepted drafts of the scheduled requests so far (0 before any
    was verified); mean drafts verified in this step over num_speculative_tokens.

    Reward: minus the request-seconds spent since the action before, in the queue or being served. Over an episode they
    add up to minus the end-to-end latency of all requests together, so the best return is the least mean latency.

    ``info`` holds ``now_s``, ``elapsed_s`` since the action before and the ``tokens`` emitted in it, for rewards of
    your own. An episode ends when all requests are served; it is never truncated (``gymnasium.wrappers.TimeLimit``
    does that).

    ``reset(options={"replication": i})`` serves the requests of the scenario's i-th replication, the ones that
    ``draftcast compare`` and ``simulate`` run on; otherwise they are drawn from the environment's random numbers.

    Args:
        scenario: with speculation, one replica and open-loop arrivals; its own policy plays no part.

    Raises:
        ScenarioError: it is not like that.
    """

    def __init__(self, scenario: Scenario) -> None:
        if scenario.speculative_config is None:
            raise ScenarioError("needs speculation: nothing else is decided", key="engine.speculative_config")
        for key in ("cluster.replicas", "engine.data_parallel_size"):
            if (count := attrgetter(key)(scenario)) != 1:
                raise ScenarioError("must be 1 here", key=key, value=count)
        if scenario.is_closed_loop:
            raise ScenarioError("must be open-loop here", key="workload.arrivals.process", value="closed_loop")
        if scenario.workload.has_sessions:
            raise ScenarioError("must send requests that wait for no answer here", key="workload.sessions")
        # `off` varies the draft length too, so the engine is set up as for any policy that does.
        self._scenario = with_values(scenario, {"policy": {"name": "off"}})
        self._deployment = replace(deploy(self._scenario), policy=Policy())
        self._spec = workload_spec(self._scenario)
        self._traces = load_traces(self._spec)
        self._k = self._deployment.settings.max_drafts
        self._replica: Replica | None = None
        self._batch: Batch | None = None
        self.action_space = spaces.Discrete(self._k + 1)
        self.observation_space = spaces.Box(0.0, 1.0, (len(OBSERVED),), np.float32)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Draw an episode's requests and run up to the first decision. Raises ScenarioError: a wrong option."""
        others = dict(options or {})
        replication = others.pop("replication", None)
        for name, value in others.items():
            raise ScenarioError("unknown; the only option is replication", key=f"options.{name}", value=value)
        index = whole(0)
        if replication is not None and not index.holds(replication):
            raise ScenarioError(index.message, key="options.replication", value=replication)
        super().reset(seed=seed)
        if replication is None:
            run_seed = int(self.np_random.integers(1 << 62))
        else:
            run_seed = replication_seed(self._scenario.statistics.seed, int(replication))
        table = build_requests(self._spec, run_seed, None, self._deployment.settings.max_model_len, self._traces)
        self._arrival_s = table.arrival_s  # of the client; the engine has a request once the front end is done with it
        table = replace(table, arrival_s=table.arrival_s + front_end_s(self._scenario, [self._deployment], table))
        (replica,) = build_replicas(self._scenario, [self._deployment], table, run_seed)
        (self._replica,) = replica.ranks
        self._replica.submit(np.arange(len(table), dtype=np.uint32))
        self._so_far = (0.0, 0.0, 0)  # the clock, seconds that requests lived, tokens; at the last action
        self._run(self._replica)
        return self._observation(), {"now_s": float(self._replica.state.engine[0]["host_s"])}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Let every scheduled request make ``action`` drafts and run up to the next decision. Raises gymnasium's
        InvalidAction: not one of ``action_space``; its ResetNeeded: no episode."""
        replica = self._replica
        if replica is None or self._batch is None:
            raise gymnasium.error.ResetNeeded("the episode is over, or has not begun: call reset()")
        if not self.action_space.contains(action):
            raise gymnasium.error.InvalidAction(f"action = {action!r}: must be a whole number in 0..{self._k}")
        write_decision(replica.state, self._batch.num_seqs, int(action), "action")
        self._run(replica)
        engine = replica.state.engine[0]
        finish_s = replica.state.requests["finish_s"]  # negative before the end
        lived_s = np.where(finish_s < 0, engine["host_s"], finish_s) - self._arrival_s
        before = self._so_far
        self._so_far = float(engine["host_s"]), float(np.maximum(lived_s, 0.0).sum()), int(engine["emitted_tokens"])
        elapsed_s, request_seconds, tokens = (now - was for now, was in zip(self._so_far, before, strict=True))
        info = {"now_s": self._so_far[0], "elapsed_s": elapsed_s, "tokens": tokens}
        return self._observation(), -request_seconds, self._batch is None, False, info

    def _run(self, replica: Replica) -> None:
        """Up to the next decision or the end."""
        stop = replica.run(math.inf)
        if stop not in (STOP_DECIDE, STOP_IDLE):
            raise SimulationError("the engine can run nothing although requests wait")
        self._batch = Batch(replica.state) if stop == STOP_DECIDE else None

    def _observation(self) -> NDArray[np.float32]:
        batch = self._batch
        if batch is None:
            return np.zeros(len(OBSERVED), np.float32)
        settings = self._deployment.settings
        rates = batch.acceptance[~np.isnan(batch.acceptance)]
        seen = (
            batch.num_seqs / settings.max_num_seqs,
            batch.waiting / (batch.waiting + settings.max_num_seqs),
            batch.kv_usage,
            batch.context.mean() / settings.max_model_len,
            batch.is_prefill.mean(),
            rates.mean() if rates.size else 0.0,
            batch.drafts.mean() / self._k,
        )
        return np.clip(np.array(seen, np.float32), 0.0, 1.0)
