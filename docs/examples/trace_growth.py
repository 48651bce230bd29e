"""How much a recorded traffic may grow before a cluster must: fewest GPUs for a trace, with one replica to spare.

The trace is replayed as it was recorded, then faster and faster: its gaps shrink, its lengths and their order stay.

    python docs/examples/trace_growth.py azure-conversation trace.csv --slo 'ttft:p95<2s' --growth 1,1.5,2
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from draftcast.scenarios.cli.terminal import run_script
from draftcast.scenarios.plan.question import PlanQuestion, mean_rate, parse_objectives
from draftcast.scenarios.plan.sizing import plan
from draftcast.scenarios.schema.load import load_scenario
from draftcast.scenarios.schema.numbers import parse_values


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line a growth factor: GPUs of the best method, and the growth that they still hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", help="a YAML file or a bundled scenario; the trace replaces its workload")
    parser.add_argument("trace", type=Path, help="a trace file of a known format")
    parser.add_argument("--slo", required=True, help="objectives, e.g. 'ttft:p95<500ms;tpot:p95<30ms'")
    parser.add_argument("--growth", default="1,1.5,2", metavar="F,F,...|A..B:N", help="factors on the recorded rate")
    parser.add_argument("--spare", type=int, default=1, help="replicas that may fail (1: N+1)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a scenario's key")
    options = parser.parse_args(arguments)
    scenario = load_scenario(options.scenario, overrides=options.set, trace=options.trace)
    recorded = mean_rate(scenario)
    objectives = parse_objectives(options.slo)
    print(f"recorded: {recorded:.4g} requests/s on average")
    print(f"{'growth':>8}{'req/s':>10}{'GPUs':>6}  {'best':<32}{'holds up to':>12}")
    for factor in parse_values(options.growth, "--growth"):
        answer = plan(PlanQuestion(scenario, factor * recorded, objectives, spare=options.spare))
        best = answer.best
        if best is None or best.largest is None:
            print(f"{factor:>8g}{factor * recorded:>10.4g}     -  {answer.sizings[0].reason}")
            continue
        holds = f"x {best.largest.met / recorded:.2f}"
        print(f"{factor:>8g}{factor * recorded:>10.4g}{best.num_gpus:>6}  {best.candidate.label:<32}{holds:>12}")


if __name__ == "__main__":
    run_script(main)
