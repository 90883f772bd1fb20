"""The table of faults in ARCHITECTURE.md, made from the ``row`` marks of the tests.

``python -m tests.support.fault_table`` writes it; a test compares, and fails when a row has
neither a test nor a word on why it has none.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
START = "<!-- faults: written by `make docs` from the row marks of the tests -->\n"
END = "<!-- end of faults -->"

ROWS = {
    "A1": "a consumer is killed in the middle of a generation",
    "A2": "a consumer is frozen beyond its lease, and wakes",
    "A3": "SIGTERM and SIGINT, once and twice",
    "A4": "a consumer's event loop is blocked",
    "A5": "two consumers for one GPU",
    "A6": "no file descriptors, no disk for logs",
    "A7": "an old consumer beside a new producer",
    "B1": "the engine crashes with work in flight",
    "B2": "the engine hangs while its health check is good",
    "B3": "the engine is busy while its health check is bad",
    "B4": "the engine starts slowly, or not at all",
    "B5": "out of GPU memory, the GPU lost",
    "B6": "malformed, cut and foreign answers",
    "B7": "429, 503, refused and reset connections",
    "B8": "the engine answers another request",
    "B9": "a part of the engine dies",
    "B10": "a leftover engine holds the GPU or the port",
    "C1": "Redis restarts",
    "C2": "Redis loses the end of its log, or goes back to an old snapshot",
    "C3": "fail-over to a replica that lagged behind",
    "C4": "Redis loses everything in the middle of a run",
    "C5": "Redis is out of memory",
    "C6": "Redis is set to evict keys",
    "C7": "a consumer is cut off from Redis for longer than a lease",
    "C8": "Redis is slow",
    "C9": "the answer to a script is lost",
    "C10": "wrong password, missing rights, no free connection, no TLS",
    "C11": "the clock of the Redis host jumps",
    "C12": "Redis in cluster mode",
    "C13": "other programs' keys in the same database",
    "D1": "`rq info` in a loop",
    "D2": "a stock `rq worker` on a run",
    "D3": "`rq empty`, `rq requeue`, `rq suspend`",
    "D4": "rq-dashboard and rq-exporter beside a run",
    "E1": "a sink is killed at each step",
    "E2": "two sinks, a zombie sink",
    "E3": "object storage fails, by operation and by failure",
    "E4": "a PUT succeeded and its answer was lost",
    "E5": "another sink took the number",
    "E6": "a store that ignores conditional writes",
    "E7": "a slow store, a large batch",
    "E8": "bucket, region, keys, rights, clock are wrong",
    "E9": "no local disk",
    "E10": "a store that does not read what was just written",
    "E11": "a part is damaged",
    "E12": "a result that cannot be stored",
    "E13": "storage is away for hours",
    "E14": "abandoned uploads",
    "F1": "a load is killed",
    "F2": "the same data set twice",
    "F3": "a data set that changed",
    "F4": "a prompt that always fails",
    "F5": "a prompt too long for the model",
    "F6": "giant rows, giant data sets",
    "F7": "broken files and rows",
    "F8": "ids that come twice",
    "F9": "ids of any kind",
    "F10": "empty and cut completions",
    "F11": "the clock of a producer or consumer jumps",
    "F12": "the data set changes while it is read",
    "F13": "a prompt shard is missing",
    "F14": "another engine or other settings in one run",
    "G1": "all machines restart",
    "G2": "the kernel kills for memory",
    "G3": "services start in any order",
    "G4": "an upgrade while a run goes on",
    "G5": "a host name that does not resolve",
}
"""Row -> what happens."""

ELSEWHERE: dict[str, str] = {
    "B4": "No GPU here: the stand-in starts slowly, refuses and never comes up, and the log of a"
    " start on an H200 that found no memory (`log_no_memory.txt`) is read for its cause. No start"
    " that failed under the supervisor is on record from a real card.",
    "B5": "No GPU here: engines die with the words of real ones (a device assert of an H200,"
    " `log_device_assert.txt`; running out of memory and a lost card as PyTorch's sources have"
    " them), and the card is lost by a module `pynvml` of the tests' own with the error numbers"
    " of NVML's reference. ECC and throttling are only shown, by the same means"
    " (`unit/test_figures.py`). No real card was lost.",
    "G2": "A kill for want of memory is a `kill -9`: of a consumer A1, of an engine B1.",
    "G4": "Two versions side by side are tried as records of an unknown version: A7.",
}
"""Row -> why no test of its own provokes it here, and what was checked instead."""


def marks(file: Path) -> dict[str, list[str]]:
    """Row -> the tests of a file that carry its mark, ``(all)`` for a mark of the whole file."""
    found = defaultdict(list)
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            places, name = node.decorator_list, node.name
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            places, name = [node.value], ""
        else:
            continue
        for call in (one for place in places for one in ast.walk(place)):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in {"pytest.mark.row", "row"}:
                found[ast.literal_eval(call.args[0])].append(name)
    return found


def covered() -> dict[str, list[str]]:
    """Row -> ``file::test`` of every test that carries its mark."""
    rows = defaultdict(list)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for row, tests in marks(file).items():
            path = file.relative_to(ROOT / "tests").as_posix()
            rows[row] += [f"{path}::{test}" if test else path for test in tests]
    return rows


def table() -> str:
    tests = covered()
    lines = ["| row | fault | tests, below `tests/` |", "| --- | --- | --- |"]
    for row, what in ROWS.items():
        where = "<br>".join(f"`{test}`" for test in dict.fromkeys(tests.get(row, ())))
        words = "<br>".join(part for part in (where, ELSEWHERE.get(row, "")) if part)
        lines.append(f"| {row} | {what} | {words or '**none**'} |")
    return "\n".join(lines) + "\n"


def page_with_table() -> str:
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    return head + START + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page_with_table(), encoding="utf-8")
