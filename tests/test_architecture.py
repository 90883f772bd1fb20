"""The house rules that a machine can check: who may import what, where names are spelled."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support import fault_table, file_table

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("common", "consumer", "deploy", "producer")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

# Library -> the only places that may import it.
OWNERS = {
    "aiohttp": ("consumer/engine/http.py",),
    "matplotlib": ("producer/report/figures.py",),
    "minio": ("common/s3/",),
    "urllib3": ("common/s3/",),
    "optuna": ("consumer/tuning/search.py",),
    "pyarrow": (
        "common/parts/parquet.py",
        "producer/sources/arrow.py",
        "producer/sources/parquet.py",
    ),
    "pydantic": ("common/settings.py", "producer/sources/"),
    "pydantic_settings": ("common/settings.py",),
    "redis": ("common/redis_client.py", "common/queue/", "consumer/reporter.py"),
    "rq": ("common/queue/job.py", "consumer/reporter.py"),
    "torch": ("common/training.py",),
    "transformers": ("common/tokens.py",),
}
SLEEPS = {"time.sleep", "asyncio.sleep"}
SLEEPLESS = {"asyncio.sleep(0)"}  # only lets others have their turn
FORBIDDEN = {"pickle", "dill", "marshal", "shelve", "yaml"}


def relative(path):
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path):
    return tuple(ast.walk(tree_of(path)))


def for_types_only(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports_of(path):
    typing = {
        id(inner) for node in nodes_of(path) if for_types_only(node) for inner in ast.walk(node)
    }
    for node in nodes_of(path):
        if id(node) in typing:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def named_at_the_top(path):
    """Yield what a file imports, also for types alone; not what a call of it imports."""
    body = tree_of(path).body
    for node in [one for top in body for one in (top.body if for_types_only(top) else [top])]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield node.module


def functions_of(path):
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def place(path, node):
    return f"{relative(path)}:{node.lineno}"


def test_libraries_are_imported_by_their_owners_only():
    assert [
        f"{relative(path)} imports {library}, which belongs to {owners}"
        for path in SOURCES
        for library in set(imports_of(path))
        if (owners := OWNERS.get(library)) and not relative(path).startswith(owners)
    ] == []


def test_no_library_that_makes_code_from_data_is_imported():
    found = {relative(path): FORBIDDEN.intersection(imports_of(path)) for path in SOURCES}
    assert {name: libraries for name, libraries in found.items() if libraries} == {}


def test_no_two_files_need_each_other():
    """Also for types alone: a type that two files share belongs to the one below the other."""
    files = {module_of(path): path for path in SOURCES}
    needs = {name: set(named_at_the_top(path)) & files.keys() for name, path in files.items()}
    try:
        TopologicalSorter({name: found - {name} for name, found in needs.items()}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_code_is_made_from_data():
    assert [
        f"{place(path, node)} calls {node.func.id}"
        for path in SOURCES
        for node in nodes_of(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"eval", "exec", "__import__"}
    ] == []


def test_redis_keys_are_spelled_in_one_file():
    assert [
        f"{place(path, node)} spells the key {node.value!r}"
        for path in SOURCES
        for node in nodes_of(path)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.match(r"(rq|genq):[a-z]", node.value)
        and relative(path) != "common/keys.py"
    ] == []


def test_no_file_outgrows_its_room():
    sizes = {
        relative(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in SOURCES + TESTS
    }
    assert {name: lines for name, lines in sizes.items() if lines > MAX_FILE_LINES} == {}


def test_no_function_outgrows_its_room():
    sizes = {
        place(path, node): node.end_lineno - node.lineno + 1
        for path in SOURCES
        for node in functions_of(path)
    }
    assert {name: lines for name, lines in sizes.items() if lines > MAX_FUNCTION_LINES} == {}


def sleeps_in(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and "sleep" in {alias.name for alias in node.names}:
            yield f"{place(path, node)} hides it"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in SLEEPS:
            line = lines[node.lineno - 1]
            reason = "# poll: " in line or "# lasts: " in line
            if not reason and ast.unparse(node) not in SLEEPLESS:
                yield f"{place(path, node)} sleeps without a reason"


def test_tests_wait_for_signals_and_do_not_sleep():
    """``# poll:`` marks a pause between two looks, ``# lasts:`` what itself takes so long."""
    assert [found for path in TESTS for found in sleeps_in(path)] == []


def test_each_guarantee_names_a_test_that_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("## Guarantees")[2].partition("\n## ")[0]
    named = re.findall(r"`((?:tests/)[\w/]+\.py)::(\w+)`", table)
    rows = re.findall(r"^\| \*\*G\d", table, flags=re.MULTILINE)
    assert len(rows) >= 7, "one row a guarantee, G1 to G7"
    assert named, "the table names no test"
    for file, test in named:
        source = ROOT / file
        assert source.is_file(), f"{file} does not exist"
        names = {
            node.name
            for node in nodes_of(source)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        } | set(re.findall(r"^(\w+) = ", source.read_text(encoding="utf-8"), flags=re.MULTILINE))
        assert test in names, f"{file} has no {test}"


def test_the_table_of_files_is_what_the_files_say():
    current = file_table.PAGE.read_text(encoding="utf-8")
    assert current == file_table.page_with_table(), "run: make docs"


def test_the_table_of_faults_is_what_the_tests_say():
    current = fault_table.PAGE.read_text(encoding="utf-8")
    assert current == fault_table.page_with_table(), "run: make docs"


def test_each_fault_has_a_test_or_a_word_on_why_not():
    covered = fault_table.covered()
    assert set(covered) <= set(fault_table.ROWS), "a mark names a row that does not exist"
    bare = set(fault_table.ROWS) - set(covered) - set(fault_table.ELSEWHERE)
    assert not bare, f"no test covers {sorted(bare)}"


def tracked_texts():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False, timeout=30
    )
    if listed.returncode:
        pytest.skip("not a git checkout")  # an unpacked source archive
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file() and path.suffix not in {".gz", ".zst", ".parquet", ".png"}:
            yield name, path.read_text(encoding="utf-8", errors="replace")


def test_no_machine_s_path_is_in_a_tracked_file():
    for name, text in tracked_texts():
        found = re.search(r"/(home|root|Users)/[A-Za-z0-9_.-]+/", text)
        assert not found, f"{name} holds the path {found.group()}"


def test_no_file_has_anybody_install_a_genq_of_a_registry():
    """None is there, so whoever takes the name gives its users what he likes."""
    for name, text in tracked_texts():
        found = re.search(r"genq\[[a-z]+\]|pip install[^\n;&|]* '?genq\b(?!')", text)
        assert not found, f"{name}: {found.group()}"
