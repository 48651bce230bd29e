"""What the plain install lacks: one line that names the extra, and each extra brings what it is named for."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest
from paths import ROOT
from typer.testing import CliRunner

from draftcast.calibration.importers import aiconfigurator
from draftcast.errors import InputError
from draftcast.kernels.extras import missing, require
from draftcast.scenarios.cli.main import app


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("streamlit", "dashboard", ["dashboard"]),
        ("torch", "calibrate", ["calibrate", "--device", "cpu", "--out", "{tmp}/profile"]),
        ("torch", "calibrate", ["calibrate", "--device", "cuda", "--out", "{tmp}/profile"]),
        ("torch", "live", ["live", "checkpoint", "{tmp}/testbed", "--rates", "0.8,0.5"]),
        ("safetensors", "live", ["live", "checkpoint", "{tmp}/testbed", "--rates", "0.8,0.5"]),
        ("aiohttp", "live", ["live", "run", "default", "--url", "http://127.0.0.1:1", "--out", "{tmp}/run"]),
        ("aiohttp", "live", ["live", "sweep", "default", "--k", "3", "--out", "{tmp}/sweep"]),
        ("distributed", "cluster", ["sweep", "default", "--grid", "k=0", "--cluster", "tcp://x:1", "--out", "{tmp}/d"]),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    package: str, extra: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = CliRunner().invoke(app, [argument.format(tmp=tmp_path) for argument in arguments])
    assert isinstance(result.exception, InputError), result.exception
    assert str(result.exception).endswith(f": needs {package}: pip install 'draftcast[{extra}]'")
    assert not [path for path in tmp_path.iterdir() if path.name != "d"], "it says so before it begins"


def test_an_import_names_the_extra_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, aiconfigurator.PACKAGE, None)
    arguments = ["calibrate", "--import", "aiconfigurator", "--hardware", "h100-sxm", "--out", str(tmp_path / "p")]
    result = CliRunner().invoke(app, arguments)
    assert str(result.exception).endswith("needs aiconfigurator_core: pip install 'draftcast[profiles]'")


def test_the_environment_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "draftcast.scenarios.run.rl_env", raising=False)
    with pytest.raises(InputError, match=r"rl_env: needs gymnasium: pip install 'draftcast\[rl\]'$"):
        importlib.import_module("draftcast.scenarios.run.rl_env")


def test_what_is_installed_is_not_missed() -> None:
    assert missing("calibrate", "numpy", "pandas") == ""
    require("calibrate", "numpy", place="here")
    assert missing("calibrate", "numpy", "no_such_package") == (
        "needs no_such_package: pip install 'draftcast[calibrate]'"
    )


def test_every_extra_brings_what_is_asked_of_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rooms = ("kernels", "calibration", "sim", "scenarios", "dashboards")
    sources = "\n".join(path.read_text("utf-8") for room in rooms for path in (ROOT / room).rglob("*.py"))
    asked = re.findall(r'(?:require|missing)\("(\w+)"((?:, "\w+")+)', sources)
    assert {extra for extra, _ in asked} == {"calibrate", "live", "dashboard", "cluster", "rl", "serve"}
    for extra, packages in asked:
        brought = {re.split(r"[<>=; ]", line)[0].replace("-", "_") for line in extras[extra]}
        assert set(re.findall(r"\w+", packages)) <= brought, extra
    assert {re.split("==", line)[0].replace("-", "_") for line in extras["profiles"]} == {aiconfigurator.PACKAGE}
