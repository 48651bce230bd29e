"""From a scenario to the simulator's records: the workload and, for class i of it, acceptance model i."""

from draftcast.calibration.acceptance.references import continued
from draftcast.scenarios.schema import Scenario
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.acceptance.model import AcceptanceModel, Trace, Tree
from draftcast.sim.acceptance.tree_shape import rates_in_another_tree, tree_rates
from draftcast.sim.cost.methods import METHODS, Method
from draftcast.sim.workload.workload import Workload


def workload_spec(scenario: Scenario) -> Workload:
    """What `build_requests` takes: the workload, each class with the recording it replays, which it needs also where
    speculation is off: in a ``specdecode_bench`` file the length of the output is the record's."""
    classes = []
    for entry in scenario.request_classes:
        acceptance = entry.acceptance or scenario.acceptance
        if isinstance(acceptance, Trace) and scenario.acceptance_of(entry.name) != acceptance:
            acceptance = acceptance.model_copy(update={"path": None})
        classes.append(entry.model_copy(update={"acceptance": acceptance}))
    return scenario.workload.model_copy(update={"classes": tuple(classes)})


def acceptance_models(scenario: Scenario) -> tuple[AcceptanceModel, ...]:
    """The acceptance model of each class, in the order of their ids; without speculation nothing is accepted."""
    tree = scenario.speculative_config.tree if scenario.speculative_config is not None else None
    k, models = scenario.num_speculative_tokens, list[AcceptanceModel]()
    for entry in scenario.request_classes:
        model = (scenario.acceptance_of(entry.name) if entry.speculation else None) or Chain(alpha=0.0)
        models.append(_shaped(model, tree, k) if isinstance(model, Tree) and tree is not None else model)
    return tuple(models)


def confidences(scenario: Scenario) -> tuple[float | None, ...]:
    """How much each class's draft knows of its own acceptance, in the order of their ids; None: not given."""
    models = [scenario.acceptance_of(entry.name) for entry in scenario.request_classes]
    return tuple(model.confidence_discrimination if model is not None else None for model in models)


def _shaped(model: Tree, tree: Method, k: int) -> Tree | Chain:
    """The model for the shape of the tree that is simulated; of a search, what it does in the rounds that match."""
    shape, usual = (tree.tree_width, tree.max_tree_nodes, tree.min_tree_width), METHODS[tree.name]
    if model.rates is not None:
        width, nodes = model.tree_width or usual.tree_width, model.max_tree_nodes or usual.max_tree_nodes
        measured = (width, nodes, model.min_tree_width or 0)
        measured_rates = continued(model.rates, max(k, len(model.rates)))
        rates = rates_in_another_tree(measured_rates, measured, shape, k, tree.growth)
    elif model.widths is not None:
        rates = tuple(model.unconditional(k).tolist())
    else:
        rates = tuple(tree_rates(model.alpha or 0.0, k, *shape, growth=tree.growth).tolist())
    if model.match_probability is None:
        return model if model.widths is not None else Tree(model="tree", rates=rates)
    matched, persistence = model.match_probability, model.persistence
    return Chain(model="ngram", rates=rates, match_probability=matched, persistence=persistence)
