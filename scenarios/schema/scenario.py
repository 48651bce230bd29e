"""A whole question: engine, hardware, cluster, workload, acceptance, policy, SLO, statistics; checks across them."""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from draftcast.calibration.acceptance.references import reference
from draftcast.calibration.profile.engines import parse_version
from draftcast.calibration.profile.hardware import hardware_names
from draftcast.frozen import Faults, Frozen, NonEmpty, OneOf, Text, in_schema, nearest_key, wrong
from draftcast.scenarios.schema.correction import Correction
from draftcast.scenarios.schema.engine import Engine
from draftcast.scenarios.schema.raw import MESSAGES
from draftcast.scenarios.schema.speculation import SpeculativeConfig, cannot_run
from draftcast.sim.acceptance import Acceptance
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.acceptance.compiled import KIND_BESIDE_HEAD
from draftcast.sim.acceptance.model import Trace, Tree
from draftcast.sim.cost.methods import METHODS, Method
from draftcast.sim.policies import BUILT_IN
from draftcast.sim.workload.workload import DEFAULT_CLASS, RequestClass, Slo, Workload

ROUTERS = ("round_robin", "random", "least_loaded", "power_of_two", "prefix_affinity")
POLICIES = tuple(BUILT_IN)
MATCHING_METHODS = ("ngram", "ngram_gpu", "suffix")

# A device also goes by an alias, in any case, or is a file; a policy may be code of one's own.
Device = Annotated[NonEmpty, in_schema(hardware_names, ".")]
PolicyName = Annotated[NonEmpty, OneOf("policy", POLICIES, ", or give module:Class or file.py:Class", r".:[^\W\d]\w*$")]
Replicas = Annotated[int, Field(ge=1, le=1024)]


class ReplicaGroup(Frozen):
    """Replicas of one kind: how many, and what they have instead of the scenario's engine, hardware and acceptance."""

    replicas: Replicas = 1
    hardware: Device | None = None
    """null: the scenario's."""
    profile: NonEmpty | None = None
    """null: the scenario's; of another hardware, that device's own."""
    engine: dict[str, Any] = Field(default_factory=dict)
    """Keys of engine with other values, {tensor_parallel_size: 2, speculative_config: null}."""
    acceptance: Acceptance | None = None
    """null: the scenario's, which is of engine.speculative_config.method; another method needs its own."""


class ClusterSpec(Frozen):
    """Replicas behind a router: identical ones, or groups of unlike ones."""

    replicas: Replicas = 1
    router: Annotated[str, OneOf("router", ROUTERS)] = "round_robin"
    groups: Annotated[tuple[ReplicaGroup, ...], Field(strict=False)] = ()
    """Replicas of unlike hardware or settings; their number is then the groups' sum."""

    @model_validator(mode="after")
    def _count_the_groups(self) -> Self:
        total = sum(group.replicas for group in self.groups)
        if self.groups and self.replicas != total:
            if "replicas" in self.model_fields_set:
                raise wrong("replicas", self.replicas, f"cluster.groups have {total}: leave it out, or the groups")
            self.__dict__["replicas"] = total
        return self


class PolicySpec(Frozen):
    """Who decides how many tokens to draft: a built-in name, or ``package.module:Class`` or ``path/file.py:Class``."""

    name: PolicyName
    parameters: dict[str, Any] = Field(default_factory=dict)

    @property
    def is_in_notebook(self) -> bool:
        """Whether its class is the running program's, which may be another one than before under the same name."""
        return self.name.startswith("__main__")


class Statistics(Frozen):
    """Replications with common random numbers.

    ``warmup: auto`` leaves the calculated warm-up of a steady run out, and load goes on until the last counted request
    has finished; ``none`` counts every request of a list that ends. ``model_error: auto`` counts the errors of step
    times against real engines into every verdict; ``none`` takes step times for exact, which leaves chance alone.
    """

    replications: Annotated[int, Field(ge=1, le=1000)] = 5
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    confidence: Annotated[float, Field(gt=0.5, lt=1, allow_inf_nan=False)] = 0.95
    warmup: Literal["auto", "none"] = "auto"
    model_error: Literal["auto", "none"] = "auto"


GIVE_A_METHOD = "give a method and its acceptance (`draftcast acceptance list` shows measured ones)"
"""What to do about a scenario that has no speculation where one is needed."""


class Scenario(Frozen):
    """One question to the simulator. Built by ``draftcast.load_scenario``; immutable, hashable by ``scenario_hash``."""

    schema_version: Literal[1]
    name: Text = ""
    description: Text = ""
    engine: Engine
    hardware: Device
    """A bundled device (draftcast hardware) or a file of one."""
    profile: NonEmpty | None = None
    """Step-time profile: a name, file or folder; null: the device's, or a roofline from its data sheet."""
    correction: Correction | None = None
    """Correction from your own runs without speculation (--calibrate-to); null: the profile's times unchanged."""
    cluster: ClusterSpec = ClusterSpec()
    workload: Workload
    acceptance: Acceptance | None = None
    """Which drafts are accepted, from your traffic (draftcast acceptance) or {reference: NAME}; no default fits all."""
    policy: PolicySpec | None = None
    """Policy that decides the draft length, {name: ...}; null: vLLM's own fixed k or schedule."""
    slo: Slo | None = None
    """Objectives of a request in milliseconds: {ttft_ms: 500, tpot_ms: 30, attainment: 0.99}."""
    statistics: Statistics = Statistics()

    @classmethod
    def elsewhere(cls, key: str) -> str | None:
        """The section an unknown top-level key belongs to, e.g. ``engine.max_num_seqs``."""
        sections: dict[str, type[Frozen]] = {"engine": Engine, "engine.speculative_config": SpeculativeConfig}
        sections |= {"workload": Workload, "cluster": ClusterSpec, "slo": Slo, "statistics": Statistics}
        # One that has the very key comes before one whose key is spelled alike.
        for section, model in sorted(sections.items(), key=lambda item: key not in item[1].model_fields):
            if near := nearest_key(key, model.model_fields):
                return f"{section}.{near}"
        return "workload.arrivals.request_rate_rps" if nearest_key(key, ["request_rate_rps"]) else None

    @property
    def speculative_config(self) -> SpeculativeConfig | None:
        """``engine.speculative_config``: None means an engine started without speculation."""
        return self.engine.speculative_config

    @property
    def method(self) -> str:
        """The simulator's method name, ``none`` without speculation."""
        return self.speculative_config.resolved_method if self.speculative_config else "none"

    @property
    def num_speculative_tokens(self) -> int:
        """k: draft tokens per round at most; 0 without speculation."""
        return self.speculative_config.k if self.speculative_config else 0

    @property
    def rate_rps(self) -> float | None:
        """Mean request rate of the arrivals; None of closed loops, segments and traces as they are, which have none."""
        rate: float | None = getattr(self.workload.arrivals, "request_rate_rps", None)
        return rate

    @property
    def is_closed_loop(self) -> bool:
        """Whether the arrivals wait for answers."""
        return self.workload.arrivals.process == "closed_loop"

    @property
    def request_classes(self) -> tuple[RequestClass, ...]:
        """The classes in the order of their ids; the one class ``default`` where the workload names none."""
        return self.workload.classes or (DEFAULT_CLASS,)

    @property
    def slos(self) -> dict[str, Slo]:
        """The SLO of each class that has one, by class name."""
        objectives = {entry.name: self.slo_of(entry.name) for entry in self.request_classes}
        return {name: slo for name, slo in objectives.items() if slo is not None}

    @property
    def resolved_policy(self) -> PolicySpec:
        """The policy that runs: the given one, else vLLM's own (adaptive verification, batch schedule, or fixed k)."""
        if self.speculative_config is None:
            return PolicySpec(name="off")
        if self.policy is not None:
            return self.policy
        if self.speculative_config.enable_adaptive_verification:
            return PolicySpec(name="adaptive_verification")
        scheduled = self.speculative_config.num_speculative_tokens_per_batch_size is not None
        return PolicySpec(name="batch_schedule" if scheduled else "fixed")

    def with_(self, **values: Any) -> "Scenario":
        """A copy with other values, for example ``scenario.with_(k=5, rate=40, tp=2)``.

        Names are the short ones of a sweep's grid (``rate``, ``k`` and so on; `draftcast.scenarios.schema.changes`) or
        dotted keys: ``with_(**{"engine.block_size": 32})``. Raises ScenarioError: no valid scenario.
        """
        from draftcast.scenarios.schema.changes import changed

        return changed(self, values)

    @property
    def more_front_end_s(self) -> float:
        """Seconds of a request in the front end beyond the engine generation's, as a calibration found them."""
        return self.correction.front_end_s if self.correction is not None else 0.0

    def acceptance_of(self, class_name: str | None = None) -> Acceptance | None:
        """The acceptance model of a class (None: the scenario's own); None only when speculation is off.

        ``rejection_sample_method: synthetic`` prescribes the acceptance of every class, as it does on a server.
        """
        if self.speculative_config is None:
            return None
        if self.speculative_config.synthetic_rates is not None:
            return Chain(rates=self.speculative_config.synthetic_rates)
        model = self._class(class_name).acceptance or self.acceptance
        head = self.speculative_config.head_drafts
        return model.beside_head(head) if head and isinstance(model, Chain) else model

    def slo_of(self, class_name: str | None = None) -> Slo | None:
        """The SLO of a class: its own, else the scenario's, whose attainment counts also where its own says none."""
        class_slo = self._class(class_name).slo
        if class_slo is None:
            return self.slo
        attainment = {"attainment": self.slo.attainment} if self.slo is not None else {}
        return Slo.model_validate(attainment | class_slo.model_dump(exclude_none=True))

    def _class(self, name: str | None) -> RequestClass:
        return next((entry for entry in self.workload.classes if entry.name == name), DEFAULT_CLASS)

    def faults(self) -> Faults:
        spec = self.speculative_config
        if spec is not None:
            engine, number, _ = parse_version(self.engine.version)
            if why := cannot_run(engine, number, spec.drafting):
                message = f"{self.engine.version} cannot run it: {why}"
                yield wrong("engine.speculative_config.method", spec.resolved_method, message)
            self._acceptance_covers(spec)
        self._recording_is_there()
        for index, entry in enumerate(self.workload.classes):
            if entry.priority != 0 and self.engine.scheduling_policy != "priority":
                message = "has no effect unless engine.scheduling_policy is priority"
                yield self.refusal(f"workload.classes.{index}.priority", message)
        if self.policy is not None:
            self._schedule_has_one_place(self.policy)

    def _schedule_has_one_place(self, policy: PolicySpec) -> None:
        """A schedule stands in vLLM's dictionary, and the policy that follows it runs."""
        place = "engine.speculative_config.num_speculative_tokens_per_batch_size"
        if policy.name == "batch_schedule" and policy.parameters:
            key, value = next(iter(policy.parameters.items()))
            message = f"batch_schedule takes none; its schedule is {place}: [[first, last, k], ...]"
            raise wrong(f"policy.parameters.{key}", value, message)
        spec = self.speculative_config
        if spec is None:
            return
        if spec.enable_adaptive_verification and policy.name not in ("adaptive_verification", "off"):
            ignored = "engine.speculative_config.enable_adaptive_verification"
            raise wrong("policy.name", policy.name, f"would ignore {ignored}; take that away, or the policy")
        schedule = spec.num_speculative_tokens_per_batch_size
        if policy.name == "batch_schedule" and schedule is None:
            raise wrong("policy.name", policy.name, f"needs {place}: [[first, last, k], ...]")
        if policy.name not in ("batch_schedule", "off") and schedule is not None:
            message = f"would ignore {place}; take that away, or the policy (or batch_schedule)"
            raise self.refusal("policy.name", message)

    def _recording_is_there(self) -> None:
        """Recorded acceptance belongs to recorded requests, so the requests must come from a file."""
        models = [("acceptance", self.acceptance, self.workload.lengths)]
        for index, entry in enumerate(self.workload.classes):
            lengths = entry.lengths or self.workload.lengths
            models.append((f"workload.classes.{index}.acceptance", entry.acceptance, lengths))
        for key, model, lengths in models:
            from_file = self.workload.arrivals.process == "trace" or (lengths is not None and lengths.path is not None)
            if isinstance(model, Trace) and model.path is None and not from_file:
                file = "specdecode_bench file (workload.lengths.path or trace arrivals)"
                raise self.refusal(f"{key}.model", f"needs requests from a {file}, or path")

    def _acceptance_covers(self, spec: SpeculativeConfig) -> None:
        """Every class has an acceptance model that fits the method and knows every draft position."""
        for index, entry in enumerate(self.request_classes):
            if entry.acceptance is not None or entry.speculation:
                key = f"workload.classes.{index}.acceptance" if entry.acceptance is not None else "acceptance"
                model = self.acceptance_of(entry.name)
                if model is None:
                    raise wrong(key, None, MESSAGES["acceptance_required"])
                self._fits(key, model, spec)

    @staticmethod
    def _fits(key: str, model: Acceptance, spec: SpeculativeConfig) -> None:
        method = spec.resolved_method

        def refusal(name: str, message: str) -> PydanticCustomError:
            value = getattr(model, name, None)
            return wrong(f"{key}.{name}", list(value) if isinstance(value, tuple) else value, message)

        most = model.max_drafts()
        if most < spec.k:
            setting = f"engine.speculative_config.num_speculative_tokens = {spec.k}"
            raise refusal("widths", f"{most} widths do not cover {setting}; give {spec.k} or more")
        searches, why = method in MATCHING_METHODS, ""
        beside_head = isinstance(model, Chain) and model.kind == KIND_BESIDE_HEAD
        if isinstance(model, Trace) and (model.match_probability is None) == searches:
            why = "recording_without_share" if searches else "share_without_search"
        elif beside_head != bool(spec.head_drafts):
            why = "suffix_beside_head" if spec.head_drafts else "no_suffix_beside_head"
        elif isinstance(model, Chain | Tree) and model.match_probability is not None and not (searches or beside_head):
            why = "share_without_search"
        if why:
            message = MESSAGES[why].format(method=method, searching=", ".join(MATCHING_METHODS))
            raise refusal("match_probability", message)
        if isinstance(model, Chain) and model.reference is not None and model.rates is not None:
            published = reference(model.reference)
            if not all(map(math.isclose, model.rates, published.unconditional(len(model.rates)))):
                alone = "give {reference: NAME} alone, or rates without it"
                raise refusal("rates", f"are not those of {model.reference}; {alone}")
            if published.method != method:
                raise refusal("reference", f"measured with method {published.method}; the method is {method}")
        if isinstance(model, Tree) != (spec.tree is not None):
            shape = "a chain" if spec.tree is None else "a tree"
            raise refusal("model", f"tree goes with draft trees, and they with it alone; {method} drafts {shape} here")
        if isinstance(model, Tree) and spec.tree is not None:
            _tree_fits(key, model, spec, spec.tree)


def _tree_fits(key: str, model: Tree, spec: SpeculativeConfig, tree: Method) -> None:
    """The tree that is simulated holds the branches that are accepted from, and rates say which tree they are of."""
    widths, width, nodes = (model.widths or ())[: spec.k], tree.tree_width, tree.max_tree_nodes
    for depth, wanted in enumerate(widths):
        if wanted > width:
            message = f"more branches than tree_width = {width}; alpha alone follows it"
            raise wrong(f"{key}.widths.{depth}", wanted, message)
    if sum(widths) > nodes:
        message = f"{sum(widths)} branches are more than max_tree_nodes = {nodes}; alpha alone follows it"
        raise wrong(f"{key}.widths", list(model.widths or ()), message)
    widest = model.tree_width or METHODS[tree.name].tree_width
    if model.min_tree_width is not None and (tree.growth != "breadth" or model.min_tree_width > widest):
        raise wrong(f"{key}.min_tree_width", model.min_tree_width, f"of method ngram's trees alone, at most {widest}")
    named, measured = (
        any(shape is not None for shape in (shaped.tree_width, shaped.max_tree_nodes, shaped.min_tree_width))
        for shaped in (spec, model)
    )
    if model.rates is not None and named and not measured:
        raise wrong(f"{key}.rates", list(model.rates), MESSAGES["rates_of_another_tree"].format(key=key))
