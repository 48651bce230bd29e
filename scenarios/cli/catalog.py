"""``draftcast scenarios``, ``models`` and ``hardware``: what is bundled, for people or as JSON."""

from __future__ import annotations

from typing import Annotated

import typer

from draftcast.scenarios.cli.terminal import print_json

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")]


def scenarios(as_json: Json = False) -> None:
    """List the embedded scenarios."""
    from draftcast.scenarios.schema.load import embedded_scenarios, load_scenario

    found = {name: load_scenario(name) for name in embedded_scenarios()}
    if as_json:
        print_json({name: {"name": each.name, "description": each.description} for name, each in found.items()})
        return
    for name, scenario in found.items():
        typer.echo(f"{name:<24}{scenario.name}")


def models(as_json: Json = False) -> None:
    """List the bundled models; any Hugging Face config.json works as well."""
    from draftcast.kernels.model.catalog import load_model, model_names

    found = {name: load_model(name) for name in model_names()}
    if as_json:
        print_json(
            {name: {"num_parameters": m.num_parameters, "architecture": m.architecture} for name, m in found.items()}
        )
        return
    for name, model in found.items():
        typer.echo(f"{name:<24}{model.num_parameters / 1e9:9.2f} B parameters  {model.architecture}")


def hardware(as_json: Json = False) -> None:
    """List the bundled devices."""
    from draftcast.calibration.profile.hardware import hardware_names, load_hardware

    found = {name: load_hardware(name) for name in hardware_names()}
    if as_json:
        fields = ("memory_bytes", "memory_bandwidth_bytes_per_s")
        print_json({name: {field: getattr(device, field) for field in fields} for name, device in found.items()})
        return
    for name, device in found.items():
        bandwidth = device.memory_bandwidth_bytes_per_s / 1e12
        typer.echo(f"{name:<16}{device.memory_bytes / 2**30:8.1f} GiB {bandwidth:7.2f} TB/s")
