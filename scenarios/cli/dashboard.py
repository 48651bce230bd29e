"""``draftcast dashboard``: starts Streamlit over the pages. Knows where they stand and how the server is to behave."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import draftcast
from draftcast.kernels.extras import require

ADDRESS = "127.0.0.1"
UPLOAD_MB = 64
PRIMARY = "#1098ad"
# Nothing is sent anywhere, nothing is asked at the start, no file is watched, and a fault shows its name only.
FIXED = {
    "browser.gatherUsageStats": "false",
    "server.showEmailPrompt": "false",
    "server.fileWatcherType": "none",
    "server.runOnSave": "false",
    "server.maxUploadSize": str(UPLOAD_MB),
    "client.toolbarMode": "viewer",
    "client.showErrorDetails": "type",
    "client.showErrorLinks": "false",
    "theme.light.primaryColor": "#0c7a8c",
    "theme.dark.primaryColor": PRIMARY,
}


def dashboard(
    scenarios: Annotated[
        list[Path] | None, typer.Argument(help="Scenario files to choose from, besides the embedded ones.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port; the first free one from 8501 when absent.")
    ] = None,
    address: Annotated[
        str, typer.Option(help="Address to listen on; anything but this machine is your choice.")
    ] = ADDRESS,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Open the what-if dashboard in a browser (needs the extra ``dashboard``)."""
    from draftcast.scenarios.schema.load import load_scenario

    for path in scenarios or []:
        load_scenario(path)
    require("dashboard", "streamlit", place="draftcast dashboard")
    command = streamlit_command(
        [str(path.absolute()) for path in scenarios or []], port=port, address=address, open_browser=open_browser
    )
    sys.stdout.flush()
    os.execv(command[0], command)


def streamlit_command(
    scenarios: list[str], *, port: int | None = None, address: str = ADDRESS, open_browser: bool = False
) -> list[str]:
    """The command that serves the pages; the first word is this interpreter."""
    app = Path(draftcast.__file__).parent / "dashboards" / "app.py"
    options = FIXED | {"server.address": address, "server.headless": "false" if open_browser else "true"}
    if port is not None:
        options["server.port"] = str(port)
    flags = [f"--{name}={value}" for name, value in options.items()]
    # -P: nothing is imported from the working directory.
    return [sys.executable, "-P", "-m", "streamlit", "run", str(app), *flags, "--", *scenarios]
