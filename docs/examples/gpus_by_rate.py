"""How many GPUs each request rate needs, without speculative decoding and with it: what SD saves as a service grows.

python docs/examples/gpus_by_rate.py default --rates 20,50,100,200 --slo 'tpot:p95<20ms'
"""

import argparse
from collections.abc import Sequence

from draftcast.scenarios.cli.terminal import run_script
from draftcast.scenarios.plan.question import GIVEN, PlanQuestion, parse_objectives
from draftcast.scenarios.plan.sizing import plan
from draftcast.scenarios.run.choices import OFF
from draftcast.scenarios.schema.load import load_scenario
from draftcast.scenarios.schema.numbers import parse_values


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line a rate: GPUs without speculation, GPUs with it, and the share saved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", help="a YAML file or a bundled scenario; it needs a speculative_config")
    parser.add_argument("--rates", required=True, metavar="R,R,...|A..B:N", help="requests per second")
    parser.add_argument("--slo", required=True, help="objectives, e.g. 'ttft:p95<500ms;tpot:p95<30ms'")
    parser.add_argument("--headroom", type=float, default=0.0, help="share beyond each rate that must hold too")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a scenario's key")
    options = parser.parse_args(arguments)
    scenario = load_scenario(options.scenario, overrides=options.set)
    objectives = parse_objectives(options.slo)
    print(f"{'req/s':>10}{'GPUs off':>10}{'GPUs SD':>10}{'saved':>8}")
    for rate in parse_values(options.rates, "--rates"):
        answer = plan(PlanQuestion(scenario, rate, objectives, methods=[OFF, GIVEN], headroom=options.headroom))
        sizings = {sizing.candidate.method == OFF: sizing for sizing in answer.sizings}
        off, on = sizings[True], sizings[False]
        saved = f"{1 - on.num_gpus / off.num_gpus:.0%}" if off.feasible and on.feasible else "-"
        counts = [str(sizing.num_gpus) if sizing.feasible else "-" for sizing in (off, on)]
        print(f"{rate:>10g}{counts[0]:>10}{counts[1]:>10}{saved:>8}")
        for sizing in (off, on):
            if not sizing.feasible:
                print(f"{'':>10}{sizing.candidate.label}: {sizing.reason}")


if __name__ == "__main__":
    run_script(main)
