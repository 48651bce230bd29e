"""The ``draftcast`` command: its subcommands, the small ones (servers, scenario files, lists of what is bundled) here.

Exit codes: 0 answered, 2 bad input, 3 the SLO is not met, 4 the cluster cannot keep up (overloaded), 5 no steady state
(not settled: more requests are needed, and no SLO is judged) or the cutover cannot be told, 6 a live run failed or is
incomplete, 7 cells of a sweep failed, 130 interrupted, 143 terminated. ``simulate`` exits with the code of the
scenario's own setting; a table of several rates (``--rates``) is an answer whatever it shows: 0. Only ``--json`` puts
JSON on standard output; progress, notes and errors go to standard error. Heavy imports wait inside the commands.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

import draftcast
from draftcast.errors import InputError
from draftcast.files import check_new, picked, write_text
from draftcast.kernels.extras import require
from draftcast.scenarios.cli import acceptance, live, profile
from draftcast.scenarios.cli.calibrate import calibrate
from draftcast.scenarios.cli.cutover import cutover
from draftcast.scenarios.cli.evidence import evidence
from draftcast.scenarios.cli.options import EXAMPLES, Commands, ScenarioOptions
from draftcast.scenarios.cli.plan import plan
from draftcast.scenarios.cli.recommend import recommend
from draftcast.scenarios.cli.simulate import compare, simulate
from draftcast.scenarios.cli.sweep import sweep
from draftcast.scenarios.cli.terminal import print_json, print_lines, run_script
from draftcast.scenarios.cli.validate import validate

app = Commands(
    name="draftcast",
    help="Forecast whether speculative decoding pays on an LLM serving cluster, and at which load it stops paying.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def serve(
    subject: ScenarioOptions,
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
    model = loaded.engine.model
    size = f"{loaded.cluster.replicas} replica{'s' * (loaded.cluster.replicas > 1)}, {speed:g}x speed"
    with subject.naming():
        run_server(loaded, host, port, speed, tokenizer, lambda address: typer.echo(f"{model} at {address} ({size})"))


def init(file: Path = Path("scenario.yaml"), as_json: bool = False) -> None:
    """Write a scenario file to edit: the default scenario with a comment at every key (-: standard output)."""
    from draftcast.scenarios.schema.changes import commented_scenario

    if str(file) == "-":
        if as_json:
            raise InputError("standard output takes the scenario or --json", file="--json")
        typer.echo(commented_scenario(), nl=False)
        return
    check_new(file)
    write_text(file, commented_scenario())
    print_lines(as_json, {"written": str(file)}, [f"written: {file}", f"next: draftcast simulate {file}"])


def schema(command: list[str] | None = None) -> None:
    """Print the JSON Schema of a scenario file, or of a command's --json, for editors and checks."""
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema_of(" ".join(command or ()))})


def schema_of(command: str) -> dict[str, Any]:
    """Of a command's ``--json``, inferred from real answers; of a scenario file for "". Raises InputError: neither."""
    if not command:
        from draftcast.scenarios.schema import Scenario

        return Scenario.model_json_schema()
    answers = json.loads(files("draftcast.scenarios").joinpath("cli/answers.json").read_text("utf-8"))
    if command not in answers["commands"]:
        raise InputError(f"has no schema; choose from {', '.join(answers['commands'])}", file="schema", value=command)
    return {"title": f"draftcast {command} --json", "$defs": answers["$defs"], **answers["commands"][command]}


# In the order of use.
COMMANDS = simulate, cutover, recommend, plan, compare, sweep, serve, evidence, init, validate, calibrate, schema
for command in COMMANDS:
    app.command(epilog=f"Example: {EXAMPLES[command.__name__]}")(command)
app.add_typer(acceptance.app, name="acceptance")
app.add_typer(profile.app, name="profile")
app.add_typer(live.app, name="live")
app.command("published", hidden=True, help="The former name of evidence.")(evidence)

# Of a command line that cannot be read; the class has no public name.
_USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]


def main() -> None:
    run_script(_run)


def _run() -> None:
    try:
        sys.exit(app(prog_name="draftcast", standalone_mode=False) or 0)
    except _USAGE_ERROR as error:
        message = " ".join(error.format_message().split())
        if message.startswith("Usage:"):  # no arguments at all
            error.show()
            sys.exit(error.exit_code)
        message = f"{message[0].lower()}{message[1:].rstrip('.')}"
        raise InputError(f"{message} (see {error.ctx.command_path} --help)" if error.ctx else message) from None


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"draftcast {draftcast.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def scenarios(as_json: bool = False) -> None:
    """List the bundled scenarios."""
    from draftcast.scenarios.schema.load import embedded_scenarios, load_scenario

    bundled = {name: load_scenario(name) for name in embedded_scenarios()}
    _print_bundled(bundled, "name description", as_json, [scenario.name for scenario in bundled.values()])


@app.command()
def models(as_json: bool = False) -> None:
    """List the bundled models; any Hugging Face config.json works as well."""
    from draftcast.kernels.model.catalog import load_model, model_names

    bundled = {name: load_model(name) for name in model_names()}
    lines = [f"{model.num_parameters / 1e9:9.2f} B parameters  {model.architecture}" for model in bundled.values()]
    _print_bundled(bundled, "num_parameters architecture", as_json, lines)


@app.command()
def hardware(as_json: bool = False) -> None:
    """List the bundled devices."""
    from draftcast.calibration.profile.hardware import hardware_names, load_hardware
    from draftcast.calibration.profile.load import usual_profile

    bundled = {name: load_hardware(name) for name in hardware_names()}
    lines = [
        f"{device.memory_bytes / 2**30:8.1f} GiB {device.memory_bandwidth_bytes_per_s / 1e12:7.2f} TB/s"
        f"  profile {usual_profile(device)}"
        for device in bundled.values()
    ]
    _print_bundled(bundled, "memory_bytes memory_bandwidth_bytes_per_s nearest_timed", as_json, lines)


def _print_bundled(bundled: Mapping[str, object], fields: str, as_json: bool, lines: Iterable[str]) -> None:
    """``fields`` of every item as JSON, or its name and line."""
    data = {name: picked(item, fields) for name, item in bundled.items()}
    print_lines(as_json, data, (f"{name:<24}{line}" for name, line in zip(bundled, lines, strict=True)))


ADDRESS = "127.0.0.1"


@app.command()
def dashboard(
    scenarios: list[Path] | None = None, port: int | None = None, address: str = ADDRESS, open_browser: bool = False
) -> None:
    """Open the dashboard in a browser (needs the extra ``dashboard``)."""
    from draftcast.scenarios.schema.load import load_scenario

    for path in scenarios or []:
        load_scenario(path)
    require("dashboard", "streamlit", place="draftcast dashboard")
    paths = [str(path.absolute()) for path in scenarios or []]
    command = streamlit_command(paths, port=port, address=address, open_browser=open_browser)
    sys.stdout.flush()
    os.execv(command[0], command)


def streamlit_command(
    scenarios: list[str], *, port: int | None = None, address: str = ADDRESS, open_browser: bool = False
) -> list[str]:
    """The command that serves the pages; the first word is this interpreter."""
    from draftcast.yaml_text import yaml_beside

    pages = Path(draftcast.__file__).parent / "dashboards" / "app.py"
    server = {"server.address": address, "server.headless": "false" if open_browser else "true", "server.port": port}
    options = yaml_beside(__file__, "streamlit.yaml") | server
    flags = [f"--{name}={value}" for name, value in options.items() if value is not None]
    # -P: nothing is imported from the working directory.
    return [sys.executable, "-P", "-m", "draftcast.dashboards.start", "run", str(pages), *flags, "--", *scenarios]
