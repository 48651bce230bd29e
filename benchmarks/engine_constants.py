"""Fits the constants of the engine generations to the evidence, each set-up held out in turn.

``python benchmarks/engine_constants.py`` forecasts the points of every generation as it stands and with each constant
moved a little, and solves for the constants that make the median error of the sources smallest: robust least squares of
the log errors, every source counted once, no constant below zero. Only dense models on devices whose kernels were timed
take part: elsewhere the constants would make up for kernels. Prints the errors before, after, and with the set-up
(model, device, generation), or with ``--sources`` each source, held out of the fit it is judged by; the ratios of step
times to kernels of models with latent or sparse attention under engines from before those kernels, by kind (`Latents`),
and of checkpoints in fp8 by blocks, each the median of its sources; the constants that changed, to be put into
``calibration/engines`` by hand, with the number of set-ups that show each (one that fewer than two show stays
provisional); and one JSON line. Ten minutes.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from unittest import mock

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from draftcast.calibration.profile import engines
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.kernels.arrays import FloatArray
from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.evidence.forecast import forecast_points
from draftcast.scenarios.evidence.point import EvidencePoint, points
from draftcast.scenarios.evidence.question import scenarios_of
from draftcast.scenarios.evidence.settings import model_name
from draftcast.scenarios.evidence.summary import FigureErrors, errors_by_source
from draftcast.scenarios.run import deployment

FITTED = (
    *("host_step_s", "host_verify_request_s", "host_verify_tree_s"),
    *("full_graph_s", "draft_pass_s", "verify_sampled_s", "verify_greedy_s"),
)
HEADLINES = ("blog-", "opt-2.7b", "arctic-")  # ids of the early results: judged by, never fitted to
MOVE_S = 2e-4
ROUNDS = 2
REWEIGHTED = 20
# A constant is drawn to its stated value as one source with this error of it would draw it.
PRIOR_S, PRIOR_ERROR = 3e-4, 0.05
Constants = dict[tuple[str, str], float]  # by generation and name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", action="store_true", help="hold out each source, not each set-up")
    arguments = parser.parse_args()
    fold_by = "source" if arguments.sources else "setup"
    stated = {
        (g.name, name): constant.value
        for g in engines.generations()
        for name in FITTED
        if (constant := getattr(g.constants, name)) is not None
    }
    tried = [p for p in points() if p.tier in ("A", "C") and not p.id.startswith(HEADLINES)]
    members = [entry.point for entry in forecast_points(tried) if entry.stratum == "dense, measured"]
    values, before = dict(stated), residuals(members, stated)
    current, held_out, shown = before, before, {}
    for _ in range(ROUNDS):
        slopes = {
            name: residuals(members, {key: value + MOVE_S * (key[1] == name) for key, value in values.items()})
            for name in FITTED
        }
        shown = seen(current, slopes, fold_by)
        values, held_out = solved(current, slopes, values, stated, fold_by)
        current = residuals(members, values)
    table = {"before": summary(before), "after": summary(current), "set-up held out": summary(held_out)}
    for when, rows in table.items():
        for kind, row in rows.items():
            show(when, kind, row)
    ratios, of_ratios = step_ratios()
    for when, errors in of_ratios.items():
        show(when, "steps with a ratio, off", asdict(errors))
    for kind, ratio in ratios.items():
        print(f"{kind} {ratio:.2f}")
    assert any(shown.values()), "no constant changes a forecast"
    changed = {key: value for key, value in values.items() if value != stated[key]}
    for (generation, name), value in changed.items():
        change = f"{stated[generation, name]:.4g} -> {value:.4g}"
        print(f"{generation:16} {name:18} {change}  set-ups: {shown.get((generation, name), 0)}")
    print(json.dumps({"constants": {f"{g}.{n}": v for (g, n), v in values.items()}, "errors": table}))


def show(when: str, kind: str, row: Mapping[str, float]) -> None:
    count = f"{row['points']:4.0f} points {row['sources']:3.0f} sources"
    print(f"{when:16} {kind:24} {count}  median {row['median']:6.1%}  mean {row['mean']:+6.1%}")


def step_ratios() -> tuple[dict[str, float], dict[str, FigureErrors]]:
    """Ratios of `EngineGeneration.step_ratio` by engine and kind, and the errors before, after and held out.

    Off times of tier A alone: a factor on every step is a factor on them, with speculation it is the same one. An
    engine of which no source shows one has none.
    """
    stated = {p.id: ratio for p in points() if p.tier == "A" and (ratio := stated_ratio(p))[1] != 1.0}
    rows = []
    for forecast in forecast_points([p for p in points() if p.id in stated]):
        if (error := forecast.error("off")) is not None:
            kind, ratio = stated[forecast.point.id]
            rows.append((f"{forecast.point.engine}, {kind}", forecast.point.source, np.log1p(error) - np.log(ratio)))
    # Logs of forecast at the kernels' times over measured time.
    logs = pd.DataFrame(rows, columns=["kind", "source", "log"])

    def median_ratio(kind: str, without: str = "") -> float:
        others = logs[(logs["kind"] == kind) & (logs["source"] != without)]
        return float(np.exp(-others.groupby("source")["log"].median().median())) if len(others) else 1.0

    def errors(ratio_of: Callable[[str, str], float]) -> FigureErrors:
        return errors_by_source([(name, float(np.exp(log) * ratio_of(kind, name) - 1.0)) for kind, name, log in rows])

    table = {
        "before": errors(lambda _kind, _source: 1.0),
        "after": errors(lambda kind, _source: median_ratio(kind)),
        "source held out": errors(median_ratio),
    }
    return {kind: median_ratio(kind) for kind in logs["kind"].unique()}, table


def stated_ratio(point: EvidencePoint) -> tuple[str, float]:
    """`EngineGeneration.step_ratio` of a point's engine, model and device; 1 without an off side."""
    scenario = scenarios_of(point).off
    if scenario is None:
        return "", 1.0
    version, model = scenario.engine.version, load_model(scenario.engine.model)
    generation = engines.generation_of(version, is_plain=not (model.is_moe or model.is_hybrid))
    return generation.step_ratio(version, model, scenario.engine.weight_dtype, load_hardware(scenario.hardware))


def residuals(members: list[EvidencePoint], values: Mapping[tuple[str, str], float]) -> pd.DataFrame:
    """By id and side of a point the log of forecast over measured time, with the constants as given."""
    generations, rows = [], []
    for g in engines.generations():
        here = {name: value for (generation, name), value in values.items() if generation == g.name}
        changed = {name: replace(getattr(g.constants, name), value=value) for name, value in here.items()}
        generations.append(replace(g, constants=replace(g.constants, **changed)))
    with mock.patch.object(engines, "generations", return_value=generations):
        _forget_constants()
        for forecast in forecast_points(members):
            point, sides = forecast.point, {"off": forecast.question.off, "on": forecast.question.on}
            for side, scenario in sides.items():
                error = forecast.error(side)
                if scenario is not None and error is not None:
                    generation = deployment.cached_deployment(scenario).settings.generation.name
                    setup = f"{model_name(point.model or '')} {scenario.hardware} {generation}"
                    rows.append((point.id, side, point.source, generation, setup, float(np.log1p(error))))
    _forget_constants()
    columns = ["id", "side", "source", "generation", "setup", "error"]
    return pd.DataFrame(rows, columns=columns).set_index(["id", "side"])


def _forget_constants() -> None:
    """Of what is kept: each version's generation, and deployments, which hold the constants they were made with."""
    engines.generation_of.cache_clear()
    deployment.deployments.clear()


def solved(
    current: pd.DataFrame, slopes: Mapping[str, pd.DataFrame], values: Constants, stated: Constants, fold_by: str
) -> tuple[Constants, pd.DataFrame]:
    """The constants that fit best, and the errors with each fold (a set-up or a source) out of its generation's fit."""
    best, held_out = dict(values), current.copy()
    everywhere = np.all([current.index.isin(moved.index) for moved in slopes.values()], axis=0)
    for generation, rows in current[everywhere].groupby("generation"):
        errors, names = rows["error"].to_numpy(), [name for name in FITTED if (generation, name) in values]
        moved = np.column_stack([slopes[name]["error"].loc[rows.index] for name in names])
        slope = (moved - errors[:, None]) / MOVE_S
        # They add up to 1 for each source and side.
        weights = 1.0 / rows.groupby(["source", "side"])["error"].transform("size").to_numpy()
        here, prior = (np.array([constants[generation, name] for name in names]) for constants in (values, stated))
        fitted = fit(errors, slope, weights, here, prior)
        best |= {(generation, name): float(value) for name, value in zip(names, fitted, strict=True)}
        for fold in rows[fold_by].unique():
            inside = (rows[fold_by] == fold).to_numpy()
            without = fit(errors[~inside], slope[~inside], weights[~inside], here, prior)
            held_out.loc[rows.index[inside], "error"] = errors[inside] + slope[inside] @ (without - here)
    return best, held_out


def fit(errors: FloatArray, slope: FloatArray, weights: FloatArray, here: FloatArray, prior: FloatArray) -> FloatArray:
    """Constants of least absolute error (reweighted least squares), none below zero, drawn to the stated ones.

    ``errors``: log errors at ``here``, shape [N]; slope: of them by the constants, [N, C]; weights: [N].
    """
    constants = here
    for _ in range(REWEIGHTED):
        left = errors + slope @ (constants - here)
        scale = np.sqrt(weights / np.maximum(np.abs(left), 0.01))
        pull = np.full(len(here), np.sqrt(1.0 / PRIOR_ERROR)) * PRIOR_ERROR / PRIOR_S
        matrix = np.vstack((slope * scale[:, None], np.diag(pull)))
        target = np.concatenate(((slope @ here - errors) * scale, pull * prior))
        constants, _ = nnls(matrix, target)
    return np.asarray(constants)


def summary(errors: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Median absolute and mean error by generation and side, each source once."""
    return {
        f"{generation} {side}": asdict(errors_by_source(list(zip(rows["source"], rows["error"], strict=True))))
        for (generation, side), rows in errors.groupby(["generation", "side"])
    }


def seen(errors: pd.DataFrame, slopes: Mapping[str, pd.DataFrame], fold_by: str) -> dict[tuple[str, str], int]:
    """By constant, in how many folds a change of it changes a forecast."""
    setups: dict[tuple[str, str], int] = {}
    for name, moved in slopes.items():
        changed = errors[(moved["error"] - errors["error"]).abs().reindex(errors.index) > 1e-4]
        counts = changed.groupby("generation")[fold_by].nunique()
        setups |= {(str(generation), name): int(count) for generation, count in counts.items()}
    return setups


if __name__ == "__main__":
    main()
