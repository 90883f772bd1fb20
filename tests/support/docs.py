"""Writes what of docs/ and README.md is made from the code: ``python -m tests.support.docs``.

Without ``--stack`` only what needs no server: pages, tables, and blocks of commands that ask none.
With it also the blocks that show the local stack, which takes minutes. Tests compare both.
"""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

from tests.support import docs_blocks, docs_pages, docs_schema, docs_stack

ROOT = Path(__file__).resolve().parents[2]
_SCHEMA = "docs/output-schema.md"
_PLACE = re.compile(r"<!-- made: table (.+?) -->\n.*?<!-- end of table -->\n", flags=re.DOTALL)


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def made_here() -> dict[str, str]:
    """Return every page as it should be, but for the blocks that need the stack."""
    pages = {page: read(page) for page in (*docs_blocks.PAGES, _SCHEMA)}
    for page in docs_blocks.PAGES:
        pages[page] = docs_blocks.with_blocks(pages[page], "here", docs_blocks.run_here)
    pages[_SCHEMA] = _with_tables(pages[_SCHEMA])
    pages["docs/settings.md"] = docs_pages.settings_page()
    pages["docs/cli.md"] = docs_pages.cli_page()
    return pages


def _with_tables(page: str) -> str:
    tables = docs_schema.tables()
    placed = _PLACE.findall(page)
    assert sorted(placed) == sorted(tables), "each table has one place in the page"
    return _PLACE.sub(
        lambda found: (
            f"<!-- made: table {found[1]} -->\n{tables[found[1]]}\n<!-- end of table -->\n"
        ),
        page,
    )


def made_on_the_stack() -> dict[str, str]:
    """Return the pages with the blocks that need the stack made anew."""
    with docs_stack.session() as run:
        return {
            page: docs_blocks.with_blocks(read(page), "stack", run) for page in docs_blocks.PAGES
        }


def stale(pages: dict[str, str]) -> list[str]:
    """Return the commands of which the pages, as they are, show something else than the stack."""
    return [one for page in pages for one in docs_blocks.unlike(read(page), pages[page], "stack")]


def write(pages: dict[str, str]) -> None:
    for page, text in pages.items():
        if not (ROOT / page).is_file() or read(page) != text:
            (ROOT / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the stack is ended, too
    write(made_here())
    if "--stack" in sys.argv[1:]:
        fresh = made_on_the_stack()
        if stale(fresh):  # all or nothing, so that what belongs together stays together
            write(fresh)
