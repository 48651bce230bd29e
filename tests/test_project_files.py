"""The documentation site, and the files around the code: containers, workflow, citation."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

import draftcast
from draftcast.scenarios.cli.main import app
from draftcast.scenarios.schema.load import load_scenario

ROOT = Path(__file__).parents[1]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text("utf-8"), re.DOTALL)


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "api" / "index.html").read_text("utf-8")
    for name in draftcast.__all__:
        assert name in page or name in ("DraftcastError", "InputError", "Scenario", "__version__"), name
    assert "https://fonts." not in page


def test_every_page_of_the_docs_is_on_the_site() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if f": {page}" not in text} == set()


def test_examples_of_the_site_run(tmp_path: Path) -> None:
    (example,) = blocks("api.md", "python")
    small = example.replace(
        'load_scenario("default")', 'load_scenario("default", overrides=["workload.num_requests=300"])'
    )
    assert small != example
    exec(compile(small, "api.md", "exec"), {})
    (scenario,) = blocks("index.md", "yaml")
    path = tmp_path / "my.yaml"
    path.write_text(scenario)
    assert load_scenario(path).rate_rps == 10


@pytest.mark.parametrize("service", ["server", "dashboard"])
def test_containers_start_commands_that_exist(service: str) -> None:
    image = (ROOT / "Dockerfile").read_text("utf-8")
    entry, default = (json.loads(found) for found in re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", image, re.MULTILINE))
    assert entry == ["draftcast"]
    name, *arguments = read("compose.yaml")["services"][service].get("command", default)
    get_command(app).commands[name].make_context(name, list(arguments))  # type: ignore[attr-defined]
    (warms,) = re.findall(r"^RUN draftcast (.*)$", image, re.MULTILINE)
    name, *arguments = shlex.split(warms)
    get_command(app).commands[name].make_context(name, list(arguments))  # type: ignore[attr-defined]
    extras = set(re.findall(r"\.\[([\w,]+)\]", image)[0].split(","))
    assert extras == {"dashboard", "serve"}


def test_prometheus_and_grafana_look_at_what_the_server_says() -> None:
    services = read("compose.yaml")["services"]
    for one in services.values():
        assert all(port.startswith("127.0.0.1:") for port in one["ports"])
        for volume in one.get("volumes", []):
            assert (ROOT / volume.split(":")[0]).exists()
    port = services["server"]["command"][services["server"]["command"].index("--port") + 1]
    assert read("deploy/prometheus.yml")["scrape_configs"][0]["static_configs"] == [{"targets": [f"server:{port}"]}]
    words = read("scenarios/serve/metrics.yaml")
    known = {*words["histograms"], *words["counters"]}
    known |= {name for table in ("scheduler", "speculation") for name, *_ in words[table].values()}
    board = json.loads((ROOT / "deploy/grafana/dashboards/draftcast.json").read_text("utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = {re.sub(r"_(bucket|total)$", "", name) for text in asked for name in re.findall(r"vllm:(\w+)", text)}
    assert used <= known
    assert len(used) >= 8


def test_the_workflow_makes_readme_s_links_whole(tmp_path: Path) -> None:
    (step,) = [step["run"] for step in read(".github/workflows/ci.yml")["jobs"]["build"]["steps"]
               if "sed" in step.get("run", "")]  # fmt: skip
    for name in ("README.md", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"))
    environment = {"GITHUB_REPOSITORY": "someone/draftcast", "GITHUB_SHA": "abc", "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-c", step], cwd=tmp_path, env=environment, check=True)
    text = (tmp_path / "README.md").read_text("utf-8")
    assert "](https://raw.githubusercontent.com/someone/draftcast/abc/docs/img/demo.png)" in text
    assert not [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith(("https://", "#"))]
    pages = tomllib.loads((tmp_path / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    assert pages["Issues"] == "https://github.com/someone/draftcast/issues"
    assert {"Source", "Documentation", "Changelog"} < set(pages)


def test_readme_begins_with_the_installation() -> None:
    (first, *_) = re.findall(r"```bash\n(.*?)\n", (ROOT / "README.md").read_text("utf-8"))
    assert first.startswith("pip install draftcast ")


def test_the_workflow_runs_the_gate_and_the_versions_agree() -> None:
    jobs = read(".github/workflows/ci.yml")["jobs"]
    assert {"run": ".ci/run"} in jobs["gate"]["steps"]
    assert jobs["publish"]["needs"] == ["gate", "build"]
    assert read("CITATION.cff")["version"] == draftcast.__version__


def test_mutants_are_drawn_from_a_copy_of_the_checkout() -> None:
    command = [sys.executable, "benchmarks/mutants.py", "--mutants", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"seed": 0, "mutants": 0, "killed": [], "survived": [], "not judged": []}
