"""Which device serves a load for the least money: every device and tensor parallelism, at your own prices.

The prices are a file of your own, with the day they are of:

    date: 2026-11-01
    per_gpu_hour: {h100-sxm: 2.49, a100-80g: 1.29}

    python docs/examples/cheapest_hardware.py default prices.yaml --rate 100 --slo 'tpot:p95<30ms'
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from draftcast.calibration.yaml_text import parse_yaml
from draftcast.errors import InputError
from draftcast.files import read_text
from draftcast.scenarios.cli.terminal import run_script
from draftcast.scenarios.compare.metric import Price
from draftcast.scenarios.plan.question import PlanQuestion, parse_objectives
from draftcast.scenarios.plan.sizing import plan
from draftcast.scenarios.schema.load import load_scenario
from draftcast.scenarios.show.plan_report import answer_line


def read_prices(path: Path) -> dict[str, Price]:
    """Prices by device of a YAML file with ``date`` and ``per_gpu_hour``.

    Raises:
        InputError: another form, or a price or a day that is none.
    """
    try:
        data = parse_yaml(read_text(path), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as text: {error}", file=str(path)) from None
    prices = data.get("per_gpu_hour") if isinstance(data, dict) and set(data) == {"date", "per_gpu_hour"} else None
    if not isinstance(prices, dict) or not prices:
        raise InputError("must hold date and per_gpu_hour, a price for each device", file=str(path))
    found = {}
    for name, value in prices.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError("must be a number", file=str(path), key=f"per_gpu_hour.{name}", value=value)
        try:
            found[name] = Price(float(value), str(data["date"]))
        except InputError as error:
            raise error.at(file=str(path)) from None
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line a candidate, the cheapest first, and the answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", help="a YAML file or an embedded scenario")
    parser.add_argument("prices", type=Path, help="YAML file with date and per_gpu_hour; its devices are compared")
    parser.add_argument("--rate", type=float, required=True, help="requests per second")
    parser.add_argument("--slo", required=True, help="objectives, e.g. 'ttft:p95<500ms;tpot:p95<30ms'")
    parser.add_argument("--tp", type=int, nargs="+", default=[1], help="tensor-parallel sizes")
    parser.add_argument("--spare", type=int, default=0, help="replicas that may fail (1: N+1)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a scenario's key")
    given = parser.parse_args(arguments)
    prices = read_prices(given.prices)
    question = PlanQuestion(
        load_scenario(given.scenario, overrides=given.set),
        rate_rps=given.rate,
        objectives=parse_objectives(given.slo),
        hardware=list(prices),
        tensor_parallel_sizes=given.tp,
        prices=prices,
        spare=given.spare,
    )
    answer = plan(question)
    for sizing in answer.sizings:
        cost = sizing.cost_per_hour
        figures = f"{sizing.num_gpus:>6} GPUs{cost:>12,.2f} an hour" if cost is not None else f"  {sizing.reason}"
        print(f"{sizing.candidate.label:<32}{figures}")
    print(answer_line(answer))


if __name__ == "__main__":
    run_script(main)
