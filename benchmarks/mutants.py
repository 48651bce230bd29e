"""Do the tests see a fault in ``sim/``? Seeded mutants (a sign, off by one, a swapped branch), each run against them.

    python benchmarks/mutants.py [--seed 0] [--mutants 60] [--source COMMIT]

Each mutant changes one expression in a temporary copy of the checkout, and the test files of its package
(``tests/sim/...``) run against it: a failure or a run over the time limit kills it. Mutants are drawn by function name
and expression, so that two commits get the same ones as far as both have them, also where a file moved. Files that pass
without the compiler (``NUMBA_DISABLE_JIT``) in an eighth of the limit run so and first; where one does not pass at all,
nothing can be judged. Prints a row a mutant and one JSON line.
"""

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[1]
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One changed expression; ``number`` tells equal expressions of a function apart."""

    file: Path
    function: str
    kind: str
    old: ast.expr
    new: ast.expr
    number: int

    @property
    def identity(self) -> str:
        return f"{self.function}: {ast.unparse(self.old)} -> {ast.unparse(self.new)} #{self.number}"

    def source(self) -> bytes:
        lines = self.file.read_bytes().splitlines(keepends=True)
        first, last = self.old.lineno - 1, self.old.end_lineno - 1
        changed = lines[first][: self.old.col_offset] + f"({ast.unparse(self.new)})".encode()
        return b"".join([*lines[:first], changed + lines[last][self.old.end_col_offset :], *lines[last + 1 :]])


def changes(node: ast.AST) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """(kind, expression, what it becomes) for one node of a syntax tree."""
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPPED:
        yield "sign", node, ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)
        if isinstance(node.right, ast.Constant) and type(node.right.value) is int:
            yield "off by one", node, ast.BinOp(node.left, node.op, ast.Constant(node.right.value + 1))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPPED:
        yield "off by one", node, ast.Compare(node.left, [SWAPPED[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.If | ast.IfExp):
        yield "swapped branch", node.test, ast.UnaryOp(ast.Not(), node.test)


def mutants_of(file: Path) -> Iterator[Mutant]:
    def within(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                yield from within(child, f"{function}.{child.name}".lstrip("."))
            elif child is not getattr(node, "returns", None) and not isinstance(child, ast.arg):
                yield function, child
                yield from within(child, function)

    counts: dict[str, int] = {}
    for function, node in within(ast.parse(file.read_text("utf-8")), ""):
        for kind, old, new in changes(node) if function else ():
            mutant = Mutant(file, function, kind, old, new, 0)
            number = counts[mutant.identity] = counts.get(mutant.identity, -1) + 1
            yield Mutant(file, function, kind, old, new, number)


def checkout(commit: str | None, folder: Path) -> None:
    """A copy of a commit, or of the working tree with what is not ignored."""
    command = ["git", "archive", str(commit)]
    if commit is None:
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
        command = ["tar", "--create", "--file=-", *(name for name in names if name and os.path.lexists(ROOT / name))]
    packed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "--extract", "--file=-", "--directory", folder], check=True, input=packed)


def passes(folder: Path, compiled: bool, path: Path, limit_s: float) -> bool:
    """Whether a file's tests pass within the limit, or within a quarter of it without the compiler."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "NUMBA_DISABLE_JIT": str(int(not compiled))}
    most_s = limit_s if compiled else limit_s / 4
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=most_s, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@cache
def tests_of(folder: Path, package: str, limit_s: float) -> list[tuple[bool, Path]]:
    """The package's test files, those that need the compiler (True) last; none where one does not pass."""
    tests = []
    for path in (folder / "tests/sim" / package).glob("test_*.py"):
        compiled = not passes(folder, False, path, limit_s / 2)
        if compiled and not passes(folder, True, path, limit_s):
            return []
        tests.append((compiled, path.relative_to(folder)))
    return sorted(tests)


def main(
    seed: int = 0,
    mutants: int = 60,
    source: Annotated[str | None, typer.Option(metavar="COMMIT", help="a commit; without it the working tree")] = None,
    limit: Annotated[float, typer.Option(help="seconds for a file's tests")] = 600.0,
    package: Annotated[list[str] | None, typer.Option(help="of sim alone, e.g. workload; repeatable")] = None,
) -> None:
    outcomes: dict[str, list[str]] = {"killed": [], "SURVIVED": [], "not judged": []}
    with tempfile.TemporaryDirectory(prefix="draftcast-mutants-") as temporary:
        folder, copied = Path(temporary, "original"), Path(temporary, "mutant")
        folder.mkdir()
        checkout(source, folder)
        packages = sorted(path.name for path in (folder / "tests/sim").iterdir() if path.is_dir())
        packages = [name for name in packages if not package or name in package]
        files = [file for name in packages for file in sorted((folder / "sim" / name).rglob("*.py"))]
        drawn = sorted(
            (mutant for file in files for mutant in mutants_of(file)),
            key=lambda mutant: hashlib.sha256(f"{seed} {mutant.identity}".encode()).digest(),
        )[:mutants]
        for mutant in drawn:
            place = mutant.file.relative_to(folder)
            outcome, tests = "not judged", tests_of(folder, place.parts[1], limit)
            if tests:
                shutil.copytree(folder, copied, symlinks=True)  # with machine code, good where nothing compiled changes
                (copied / place).write_bytes(mutant.source())
                outcome = "SURVIVED" if all(passes(copied, *test, limit) for test in tests) else "killed"
                shutil.rmtree(copied)
            outcomes[outcome].append(mutant.identity)
            print(f"{outcome:<11} {mutant.kind:<15} {place}:{mutant.old.lineno}  {mutant.identity}", flush=True)
    print(json.dumps({"seed": seed, "mutants": len(drawn), **{k.lower(): v for k, v in outcomes.items()}}))


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
