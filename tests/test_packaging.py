"""The wheel: one top-level name, all data files, and it runs where the source tree is not."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from paths import ROOT

import draftcast
from draftcast.calibration.importers.build_shipped import DEVICES
from draftcast.sim.compiled.cache import STAMP

# Of https://www.apache.org/licenses/LICENSE-2.0.txt.
APACHE_2_SHA256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
SIMULATE = ("-m", "draftcast", "simulate", "default")
ROOMS = ("kernels", "calibration", "sim", "scenarios", "dashboards")


def build(kind: str, folder: Path) -> Path:
    """A wheel or an sdist, built without network from the working tree."""
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the working tree."""
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed, not editable."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-compile", "--target", str(folder), str(wheel)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def compiled(installed: Path) -> Path:
    """The installed wheel with machine code of the working tree, whose sources are the same byte for byte.

    All but the engine's outermost function: the install itself compiles that, and what the tree has not compiled.
    """
    package = installed / "draftcast"
    for room in ROOMS:
        for source in (ROOT / room).rglob("*.py"):
            copy = package / source.relative_to(ROOT)
            assert copy.read_bytes() == source.read_bytes()
            shutil.copystat(source, copy)  # numba's code is of a source's time of change
        for kind in ("nbi", "nbc"):  # indexes first: what they list is there when they are
            for code in (ROOT / room).rglob(f"__pycache__/*.{kind}"):
                if not code.name.startswith("step.advance-"):
                    (package / code.relative_to(ROOT)).parent.mkdir(exist_ok=True)
                    shutil.copy(code, package / code.relative_to(ROOT))
    shutil.copy(ROOT / "sim/__pycache__" / STAMP, package / "sim/__pycache__")
    return installed


def run_installed(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the installed wheel and this environment's packages, but not the source tree.

    What it compiles is optimised less, which takes half the time: a run here is of a few requests.
    """
    # -S leaves out site-packages with its .pth file of the editable install; its packages come back by plain path.
    libraries = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    path = ":".join([str(installed), *libraries])
    environment = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(cwd), "NUMBA_OPT": "1"}
    command = [sys.executable, "-S", "-P", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_s_only_top_level_name_is_draftcast(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name.split("/")[0] for name in archive.namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"draftcast"}


def test_the_wheel_is_small_and_holds_the_profiles(wheel: Path) -> None:
    assert wheel.stat().st_size < 15e6
    with zipfile.ZipFile(wheel) as archive:
        sizes = {Path(entry.filename).parent.name: entry.file_size for entry in archive.infolist()
                 if entry.filename.endswith("profiles/NOTICE") or entry.filename.endswith("table.parquet")}  # fmt: skip
        assert sum(entry.file_size for entry in archive.infolist()) < 15e6, "unpacked"
    assert set(sizes) == {"profiles", "mi300x", "mi355x", *DEVICES}
    assert min(sizes[name] for name in DEVICES) > 100_000
    assert min(sizes["mi300x"], sizes["mi355x"]) > 10_000


def test_wheel_and_sdist_hold_the_unchanged_licence(wheel: Path, tmp_path: Path) -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_SHA256
    with zipfile.ZipFile(wheel) as archive:
        (packed,) = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
        assert hashlib.sha256(archive.read(packed)).hexdigest() == APACHE_2_SHA256
    with tarfile.open(build("sdist", tmp_path)) as archive:
        assert [name for name in archive.getnames() if name.count("/") == 1 and name.endswith("/LICENSE")]


def test_every_source_and_data_file_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    wanted = {f"draftcast/{path.name}" for path in (ROOT / "src/draftcast").iterdir() if path.is_file()}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*"):
            if path.is_file() and path.suffix in (".py", ".json", ".yaml", ".md", ".parquet"):
                wanted.add(f"draftcast/{path.relative_to(ROOT)}")
    assert wanted <= packed, sorted(wanted - packed)
    assert "draftcast/py.typed" in packed
    assert not [name for name in packed if "__pycache__" in name]


def test_a_non_editable_install_runs(installed: Path, tmp_path: Path) -> None:
    version = run_installed(installed, tmp_path, "-m", "draftcast", "--version")
    assert version.stdout == f"draftcast {draftcast.__version__}\n", version.stderr
    # The others in one process: each would take its time to start.
    code = (
        "import draftcast\n"
        "from draftcast.scenarios.cli.main import app\n"
        "print(draftcast.__file__)\n"
        "for command in ('models', 'hardware', 'scenarios'):\n"
        "    app([command], standalone_mode=False)\n"
    )
    done = run_installed(installed, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    where, *lines = done.stdout.splitlines()
    assert where == str(installed / "draftcast/__init__.py")
    assert {line.split()[0] for line in lines} >= {"Llama-3.1-8B", "h100-sxm", "default"}


def test_a_non_editable_install_simulates_and_says_once_that_it_compiles(compiled: Path, tmp_path: Path) -> None:
    # A capacity of short requests is found in a tenth of the time.
    short = "workload.lengths={prompt_tokens: 64, output_tokens: {distribution: geometric, mean: 16}}"
    small = ["--set", "workload.num_requests=20", "--set", short, "--replications", "2", "--json"]
    first = run_installed(compiled, tmp_path, *SIMULATE, *small)
    assert first.stderr.count("draftcast: compiling the engine, once (half a minute to a minute)\n") == 1
    assert first.stdout.startswith("{")
    again = run_installed(compiled, tmp_path, *SIMULATE, *small)
    assert "compiling" not in again.stderr
    assert again.stdout == first.stdout
    # Another policy, another method, steps recorded and a sweep's worker: the same machine code.
    others = ["--set", "policy.name=goodput", "--set", "engine.enable_prefix_caching=false", "--steps"]
    assert "compiling" not in run_installed(compiled, tmp_path, *SIMULATE, *small, *others).stderr
    sweep = ["-m", "draftcast", "sweep", "default", "--grid", "k=0,1", "--workers", "1", "--out", "set", *small]
    swept = run_installed(compiled, tmp_path, *sweep)
    assert swept.returncode == 5, swept.stderr  # so few requests give no figures
    assert "compiling" not in swept.stderr
    code = (
        "import draftcast\n"
        "scenario = draftcast.load_scenario(overrides=['workload.num_requests=20', 'statistics.replications=1'])\n"
        "result = draftcast.simulate(scenario)\n"
        "print(len(result.requests), int(result.requests.finish_s.notna().sum()))\n"
    )
    done = run_installed(compiled, tmp_path, "-c", code)
    assert done.stdout.split() == ["20", "20"], done.stderr


def test_the_command_is_installed() -> None:
    done = subprocess.run([Path(sys.executable).with_name("draftcast"), "--version"], capture_output=True, check=True)
    assert done.stdout.startswith(b"draftcast ")
