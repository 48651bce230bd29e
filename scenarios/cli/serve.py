"""``draftcast serve``: a simulated server, for gateways, autoscalers, dashboards and benchmarks."""

from pathlib import Path

import typer

from draftcast.errors import naming
from draftcast.kernels.extras import require
from draftcast.scenarios.cli.options import Subject


def serve(
    subject: Subject,
    port: int = 8000,
    host: str = "127.0.0.1",
    speed: float = 1.0,
    tokenizer: Path | None = None,
    calibrate_to: list[str] | None = None,
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
