"""The tables of docs/output-schema.md: fields and types from the code, words from docs_words."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from common.ids import RunName
from common.objectstore import RunPaths
from common.parts.chain import format_key
from common.parts.index import PartIndex
from common.parts.parquet import SCHEMA
from common.records import RunManifest, RunSettings, Turn, Usage
from consumer.sink import finish
from consumer.sink.summary import Summary
from tests.support import docs_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_RUN = RunPaths(RunName("run"))


def tables() -> dict[str, str]:
    """Return every table of the page by the name of its place.

    Raises:
        AssertionError: a field has no words, or words have no field.
    """
    records = {
        "usage": (Usage, docs_words.USAGE),
        "turn": (Turn, docs_words.TURN),
        "run.json": (RunManifest, docs_words.RUN),
        "settings of a run": (RunSettings, docs_words.RUN_SETTINGS),
        "index": (PartIndex, docs_words.INDEX),
        "counts": (Summary, docs_words.COUNTS),
    }
    objects = {
        "failed.jsonl": (finish.DeadLetters._line, docs_words.FAILED),
        "manifest.json": (finish._manifest, docs_words.MANIFEST),
        "_SUCCESS": (finish.write_end, docs_words.SUCCESS),
    }
    return {
        "objects": _objects(),
        "columns": _columns(),
        **{name: _table([one.name for one in fields(kind)], words)
           for name, (kind, words) in records.items()},
        **{name: _table(_keys(writer), words) for name, (writer, words) in objects.items()},
    }  # fmt: skip


def _table(names: Iterable[str], words: Mapping[str, str]) -> str:
    found = list(names)
    complete(found, words)
    lines = [f"| `{name}` | {words[name]} |" for name in found]
    return "\n".join(["| field | meaning |", "| --- | --- |", *lines])


def complete(names: Iterable[str], words: Mapping[str, str]) -> None:
    """Check that all names have words, and all words a name."""
    missing, left = set(names) - set(words), set(words) - set(names)
    assert not missing, f"no words for {sorted(missing)}: add them to tests/support/docs_words.py"
    assert not left, f"words for what is not there: {sorted(left)} in tests/support/docs_words.py"


def _columns() -> str:
    complete(SCHEMA.names, docs_words.COLUMNS)
    lines = [f"| `{one.name}` | {_type(one)} | {docs_words.COLUMNS[one.name]} |" for one in SCHEMA]
    return "\n".join(["| column | type | meaning |", "| --- | --- | --- |", *lines])


def _type(column: Any) -> str:
    text = str(column.type)
    if text.startswith("list<element: struct"):
        text = "list of structs"
    elif text.startswith("list<"):
        text = "list of " + text.removeprefix("list<element: ").partition(" ")[0].rstrip(">")
    elif text.startswith("struct<"):
        text = "struct"
    return text + (", may be null" if column.nullable else "")


def object_keys() -> dict[str, str]:
    """Return an example key of each object of a run, by the name that RunPaths has for it."""
    keys: dict[str, str] = {}
    for name, member in vars(RunPaths).items():
        if isinstance(member, property) and not name.endswith("prefix"):
            keys[name] = getattr(_RUN, name)
    keys |= {
        "prompts": _RUN.prompts("FINGERPRINT", 0),
        "part": _RUN.part(0, "parquet"),
        "index": _RUN.index(0),
        "child": _RUN.child(RunName("child")),
    }
    makers = {name for name, one in vars(RunPaths).items() if inspect.isfunction(one)}
    unknown = {name for name in makers if name[0] != "_"} - set(keys) - {"child_name"}
    assert not unknown, f"docs_schema.object_keys does not know how to call {sorted(unknown)}"
    return keys


def _objects() -> str:
    keys = object_keys()
    complete(keys, docs_words.OBJECTS)
    order = [name for name in docs_words.OBJECTS if name in keys]
    lines = [
        f"| `{keys[name].removeprefix('run/')}` | {docs_words.OBJECTS[name]} |" for name in order
    ]
    lines.insert(
        order.index("part"),
        f"| `{format_key(_RUN).removeprefix('run/')}` | {docs_words.FORMAT_OBJECT} |",
    )
    return "\n".join(["| object, below `PREFIX/RUN/` | what it says |", "| --- | --- |", *lines])


def _keys(writer: Callable[..., Any]) -> list[str]:
    """Return the keys of the object that a function writes as a dict with constant keys."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(writer)))
    inner = {
        id(node)
        for one in ast.walk(tree)
        if isinstance(one, ast.Dict)
        for node in ast.walk(one)
        if node is not one
    }
    outer = [n for n in ast.walk(tree) if isinstance(n, ast.Dict) and id(n) not in inner]
    largest = max(outer, key=lambda node: len(node.keys))
    return list(_flat(largest, ""))


def _flat(node: ast.Dict, prefix: str) -> Iterable[str]:
    for key, value in zip(node.keys, node.values, strict=True):
        assert isinstance(key, ast.Constant)
        yield f"{prefix}{key.value}"
        for one in ast.walk(value):
            if isinstance(one, ast.Dict):
                yield from _flat(one, f"{prefix}{key.value}.")
