"""``draftcast serve``: a simulated server, for gateways, autoscalers, dashboards and benchmarks."""

from pathlib import Path
from typing import Annotated

import typer

from draftcast.errors import naming
from draftcast.kernels.extras import require
from draftcast.scenarios.cli.options import CalibrateTo, Subject, option_groups


@option_groups
def serve(
    subject: Subject,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any other than the default lets other machines in.")
    ] = "127.0.0.1",
    speed: Annotated[float, typer.Option(min=0.001, max=1000, help="Simulated seconds per second.")] = 1.0,
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Count text with this folder's tokenizer.json. Default: 4 bytes a token."),
    ] = None,
    calibrate_to: CalibrateTo = None,
) -> None:
    """Serve a scenario: an OpenAI-compatible server whose answers take the simulated time (extra ``serve``)."""
    require("serve", "starlette", "uvicorn", "prometheus_client", "tokenizers", place="draftcast serve")
    from draftcast.scenarios.serve.app import run_server

    loaded = subject.load(calibrate_to=calibrate_to)
    replicas = f"{loaded.cluster.replicas} replica{'s' * (loaded.cluster.replicas > 1)}"

    def tell(address: str) -> None:
        typer.echo(f"{loaded.engine.model} at {address} ({replicas}, {speed:g}x speed)")

    with naming(subject.scenario):
        run_server(loaded, host, port, speed, tokenizer, tell)
