"""`gen-producer trace`: the words around it: an id in, the life of the item out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import Exit, UsageError
from common.ids import run_name
from common.no_such_run import not_in_store
from common.s3 import open_store
from producer.manifest import find_manifest
from producer.trace.life import Wish, gather
from producer.trace.names import matches_of
from producer.trace.words import life_words, matches_words, trace_json

if TYPE_CHECKING:
    from common.objectstore import ObjectStore
    from common.records import RunManifest
    from common.settings import Settings
    from producer.console import Console
    from producer.trace.names import Matches


def run_trace(run: str, name: str, settings: Settings, console: Console, *, texts: bool) -> int:
    """Show the life of the item that ``name`` means; several are listed. Changes nothing.

    Raises:
        UsageError: there is no such run, no row of that name, or the run has no such item.
        VerifyError: something of storage that tells of it is damaged.
        StoreError: storage cannot be asked. Redis may be away: the rest is told all the same.
    """
    store = open_store(settings)
    manifest = find_manifest(store, run_name(run))
    if manifest is None:
        raise not_in_store(store, run_name(run))
    matches = _matches(store, manifest, name, console)
    if matches.total > 1:
        console.result(matches_words(run, matches), trace_json(run, name, matches, None, []))
        return Exit.DONE
    with console.progress("Looking for the part") as show:
        wish = Wish(texts, lambda read, _parts: show(read))
        life, notes = gather(store, settings, manifest, matches.found[0].item, wish)
    for note in notes:
        console.say(note)
    words = life_words(life, store.url)
    console.result(words, trace_json(run, name, matches, life, notes))
    return Exit.DONE


def _matches(store: ObjectStore, manifest: RunManifest, name: str, console: Console) -> Matches:
    shards = len(manifest.shards)
    with console.progress("Looking through prompts", total=shards) as show:
        matches = matches_of(store, manifest, name, show)
    if not matches.total:
        raise UsageError(
            f"Run {manifest.run} has no row called {name}.",
            why=f"All {manifest.rows:,} rows were looked through; names are compared whole.",
            fix=f"gen-producer trace {manifest.run} row:N    the N-th row of the data set",
        )
    return matches
