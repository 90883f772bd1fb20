"""Links and commands in Markdown: what they lead to has to be there."""

from __future__ import annotations

import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import click

from tests.support.docs_pages import programs

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(<?([^)\s>]+)>?\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", flags=re.DOTALL | re.MULTILINE)


def markdown_files() -> list[Path]:
    """Return all Markdown files of the project, those of other packages left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=30,
    )
    if listed.returncode:  # an unpacked source archive
        return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    names = sorted(name for name in listed.stdout.decode().split("\0") if name)
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def broken_links(page: Path) -> list[str]:
    """Return the links of a page that lead to no file, or to no heading in it."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"(?m)^(?: {4}|\t).*$", "", re.sub(r"`[^`\n]*`", "", text))
    return [link for link in _LINK.findall(text) if not _leads_somewhere(page, link)]


def _leads_somewhere(page: Path, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme:
        return parts.scheme in {"https", "http", "mailto"}
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.exists() or not target.is_relative_to(ROOT):
        return False
    return not parts.fragment or (target.suffix == ".md" and parts.fragment in anchors(target))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that a page has on GitHub: one a heading, made from its words."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found: dict[str, int] = {}
    names = []
    for heading in re.findall(r"(?m)^#{1,6} +(.+?)[ #]*$", text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", words.lower()).strip().replace(" ", "-")
        count = found.get(name, 0)
        found[name] = count + 1
        names.append(f"{name}-{count}" if count else name)
    return frozenset(names)


def commands_in(page: Path) -> Iterator[str]:
    """Yield the command lines of our programs that a page shows, continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    for line in re.findall(r"(?m)^(?: {4,}|\$ )(.*)$", text):
        found = re.search(r"(?:^|[/;&|] ?)(gen-(?:producer|consumer|sink|local)(?: .*)?)$", line)
        if found:  # as far as a comment, a pipe, another command, or the words beside it
            yield re.split(r"\s\s|\s#|\s\||;| && | & *$| 2?>", found[1])[0].strip()


def unknown_words(command: str) -> list[str]:
    """Return the subcommand or flags of a command line that the program does not have."""
    try:
        words = shlex.split(command)
    except ValueError:
        return [command]
    name, rest = words[0], words[1:]
    if "--" in rest:
        rest = rest[: rest.index("--")]
    one = programs()[name]
    while isinstance(one, click.Group) and rest and rest[0] in one.commands:
        one, rest = one.commands[rest[0]], rest[1:]
    if isinstance(one, click.Group):
        if "serve" not in one.commands:
            return [] if not rest or rest[0].startswith("-") else [rest[0]]
        one = one.commands["serve"]
    known = {opt for param in one.params for opt in (*param.opts, *param.secondary_opts)}
    known |= {"--help", "-h"}
    flags = (word for word in rest if re.match(r"-[A-Za-z-]", word))
    return [flag for flag in flags if flag.partition("=")[0] not in known]


def reachable(start: Path) -> set[Path]:
    """Return the pages that one gets to from a page by its links."""
    seen: set[Path] = set()
    waiting = [start]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        links = (urlsplit(link) for link in _LINK.findall(page.read_text(encoding="utf-8")))
        waiting += [(page.parent / link.path).resolve() for link in links if not link.scheme]
    return seen
