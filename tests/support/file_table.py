"""The table of files in ARCHITECTURE.md, made from the files' own first lines.

``python -m tests.support.file_table`` writes it; a test compares.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
START = "<!-- files: written by `make docs`, checked by tests/test_architecture.py -->\n"
END = "<!-- end of files -->"
PACKAGES = ("common", "producer", "consumer", "deploy")


def purpose(path: Path) -> str:
    """What a file says of itself in its first line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".lua":
        lines = [line for line in text.splitlines() if not line.startswith("#!")]
        return re.sub(r"^--\s*", "", lines[0])
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].replace("``", "`")


def table() -> str:
    lines = []
    for package in PACKAGES:
        lines += ["", f"### {package}/", "", "| file | what it owns |", "| --- | --- |"]
        files = sorted([*(ROOT / package).rglob("*.py"), *(ROOT / package).rglob("*.lua")])
        for path in files:
            if path.name not in {"__init__.py", "__main__.py"}:
                name = path.relative_to(ROOT / package).as_posix()
                lines.append(f"| {name} | {purpose(path)} |")
    return "\n".join(lines[1:]) + "\n"


def page_with_table() -> str:
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    return head + START + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page_with_table(), encoding="utf-8")
