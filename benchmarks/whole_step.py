"""A whole decode step built from the kernels, against what a profile says of it: the held-out check of step times.

    python benchmarks/whole_step.py --profile DIR [--device cuda] [--model Llama-3.1-8B] [--graph]

Every layer has random weights and a KV cache of its own and its kernels run in order, in the implementation that is
the fastest here; what one writes the next does not read, which changes no time. Three figures a point: the step as a
whole, the sum of its kernels timed one kind at a time, and the profile's (``draftcast profile compare`` splits it).
Not run, but part of the profile's figure: the final norm and what has no kernel here. Prints a table and a JSON line.
"""

import itertools
import json
import statistics
import sys
from collections.abc import Iterator
from typing import Annotated, Literal

import typer

from draftcast.calibration.microbench.device import Device, find_device
from draftcast.calibration.microbench.shapes import footprint_bytes
from draftcast.calibration.microbench.timer import CpuTimer, CudaTimer, Timer, freed_memory_kept
from draftcast.calibration.profile.measured import CURVES
from draftcast.errors import DraftcastError, HardwareError
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.registry import Launch, operator
from draftcast.kernels.work import layers
from draftcast.scenarios.show.profile_view import Step, open_profile, step_cost, step_parts

DTYPE = "bf16"
BURSTS = 5
MEMORY_SHARE = 0.7
Kind = tuple[str, dict[str, int], int]  # operator, its shape, how often it runs in a step


def kinds(model: ModelSpec, batch: int, q: int, context: int) -> Iterator[Kind]:
    """Kernels of one step in which each of ``batch`` sequences has ``q`` rows over ``context`` tokens."""
    rows = batch * q
    for layer in (*layers.linear_layers(model), layers.lm_head(model)):
        if not layer.num_experts:
            yield "linear", {"m": rows, "k": layer.k, "n": layer.n}, layer.count
    if model.is_moe:
        experts = {"k": model.hidden_size, "n": model.moe_intermediate_size}
        routing = {"num_experts": model.num_experts, "top_k": model.num_experts_per_tok}
        yield "moe", {"m": rows, **experts, **routing}, model.num_moe_layers
    for part in layers.elementwise_parts(model):
        if part.kernel and not part.in_experts:
            yield part.kernel, {"m": rows, **dict(zip(CURVES[part.kernel].axes, part.key, strict=True))}, part.count
    heads = {"heads": model.num_attention_heads, "kv_heads": model.num_key_value_heads, "head_dim": model.head_dim}
    full = model.num_hidden_layers - model.num_sliding_layers
    for window, count in ((0, full), (model.sliding_window, model.num_sliding_layers)):
        if count:
            cache = {"batch": batch, "q": q, "context": context, "window": window, "tree": 0}
            yield "attention_decode", cache | heads, count
    if q == 1:
        yield "sampler", {"m": rows, "n": model.vocab_size}, 1
    else:
        yield "rejection_sampler", {"batch": batch, "q": q, "n": model.vocab_size}, 1


def kv_dtype_of(name: str) -> str:
    return DTYPE if name.startswith("attention") else ""


def launches(kind: Kind, device: Device, timer: Timer, seed: int) -> list[Launch]:
    """A launch for every run of the kernel in a step, on buffers of its own, in the fastest implementation."""
    import torch

    name, shape, count = kind
    kernel = operator(name)
    generator = torch.Generator(device=device.kind).manual_seed(seed)
    kv_dtype = kv_dtype_of(name)
    inputs = [kernel.make_inputs(shape, DTYPE, kv_dtype, device.kind, generator) for _ in range(count)]
    sets = [(buffers, kernel.make_outputs(buffers)) for buffers in inputs]
    ready = [
        [implementation.prepare(*buffers) for buffers in sets]
        for name, implementation in kernel.implementations.items()
        if not implementation.supports(shape, DTYPE, kv_dtype, device.kind)
        and (name, device.kind) != ("triton", "cpu")  # interpreted, its times mean nothing
    ]
    if not ready:
        raise HardwareError("no implementation runs here", key=name, value=shape)
    return min(ready, key=lambda variant: timer.burst(variant).seconds)


def in_order(kernels: list[list[Launch]]) -> list[Launch]:
    """Launches layer by layer: the i-th share of every kind before the next share of any."""
    placed = [((index + 0.5) / len(ready), launch) for ready in kernels for index, launch in enumerate(ready)]
    return [launch for _, launch in sorted(placed, key=lambda pair: pair[0])]


def median_s(timer: Timer, ready: list[Launch], graph: bool) -> float:
    return statistics.median(timer.burst(ready, graph=graph, seen=True).seconds for _ in range(BURSTS))


def measure(model: ModelSpec, device: Device, batch: int, k: int, context: int, graph: bool) -> tuple[float, float]:
    """(Seconds of the step as a whole, sum of its kernels timed alone)."""
    timer: Timer = CpuTimer() if device.kind == "cpu" else CudaTimer()
    step_kinds = list(kinds(model, batch, 1 + k, context))
    needed = sum(count * footprint_bytes(name, shape, DTYPE, kv_dtype_of(name)) for name, shape, count in step_kinds)
    if needed > MEMORY_SHARE * device.memory_bytes:
        raise HardwareError(f"{needed / 1e9:.0f} GB needed", key="memory", value=f"{device.memory_bytes / 1e9:.0f} GB")
    kernels = [launches(kind, device, timer, seed) for seed, kind in enumerate(step_kinds)]
    alone = sum(len(ready) * median_s(timer, ready, graph) for ready in kernels)
    steps = in_order(kernels)

    def step() -> None:
        for launch in steps:
            launch()

    step()
    return median_s(timer, [step], graph), alone


def main(
    profile: Annotated[str, typer.Option(help="a bundled profile, or a folder that calibrate wrote")],
    device: Annotated[Literal["cpu", "cuda"], typer.Option()] = "cpu",
    threads: Annotated[int | None, typer.Option(help="of the CPU; as in the calibration (all)")] = None,
    model: str = "testbed-250M",
    batches: str = "1,8,64",
    k: Annotated[str, typer.Option("--k")] = "0,3",
    contexts: str = "256,1024",
    graph: Annotated[bool, typer.Option("--graph", help="replay the step as one CUDA graph")] = False,
) -> None:
    try:
        opened, spec, machine = open_profile(profile), load_model(model), find_device(device, threads)
    except DraftcastError as error:
        sys.exit(f"benchmarks/whole_step.py: {error}")
    grid = [tuple(map(int, text.split(","))) for text in (contexts, k, batches)]
    mode = "one CUDA graph" if graph else "eager"
    print(f"{spec.name} on {machine.name}, profile {opened.profile.name}, {mode}")
    print(f"{'batch':>6}{'k':>4}{'context':>9}{'step, ms':>11}{'kernels, ms':>13}{'profile, ms':>13}{'error':>9}")
    rows = []
    with freed_memory_kept():
        for context, drafts, batch in itertools.product(*grid):
            # ``context`` counts the new tokens; a step finds the cache without them.
            step = Step(model, "ngram", drafts, context=context - 1 - drafts)
            parts = step_parts(opened, step_cost(opened, step), step, batch)
            predicted = parts["target"] + parts["lm_head and sampler"]
            try:
                whole, alone = measure(spec, machine, batch, drafts, context, graph)
            except DraftcastError as error:
                print(f"{batch:>6}{drafts:>4}{context:>9}  left out: {error}")
                continue
            error_share = predicted / whole - 1.0
            figures = f"{1e3 * whole:>11.3f}{1e3 * alone:>13.3f}{1e3 * predicted:>13.3f}{error_share:>+9.1%}"
            print(f"{batch:>6}{drafts:>4}{context:>9}{figures}", flush=True)
            rows.append({"batch": batch, "k": drafts, "context": context, "step_s": whole, "kernels_s": alone}
                        | {"profile_s": predicted, "error": error_share})  # fmt: skip
    errors = [abs(float(row["error"])) for row in rows]
    if errors:
        print(f"median error {statistics.median(errors):.1%}, largest {max(errors):.1%}")
    print(json.dumps({"model": model, "device": machine.name, "graph": graph, "steps": rows}))


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
