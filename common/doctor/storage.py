"""The doctor's look at object storage: each right by itself, under a prefix that nobody reads.

Writes two small objects below ``.genq-probe/`` and deletes them. A service that only reads is not
blamed for a key that only reads.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from common.doctor.findings import Finding, Level, Part, failed, skipped
from common.doctor.queue import clock_finding
from common.errors import GenqError, StoreError
from common.objectstore import Created, ObjectMissingError
from common.s3 import open_store
from common.settings import names_of, origin_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.objectstore import ObjectStore
    from common.settings import Settings

CLOCK_SECONDS = 60.0  # S3 refuses signatures that are 15 minutes off
_DENIED = "AccessDenied"
_TRIES = 3  # of a conditional PUT whose answer was lost


@dataclass(slots=True)
class _Visit:
    """One visit: the store, what this service needs of it, what was found."""

    store: ObjectStore
    writes: bool
    conditional: bool
    key: str = field(default_factory=lambda: f".genq-probe/doctor-{secrets.token_hex(8)}")
    findings: list[Finding] = field(default_factory=list)
    written: bool = False

    def try_(self, name: str, call: Callable[[], str], *, needed: bool) -> bool:
        """Make one try; return whether the next makes sense."""
        try:
            said = call()
        except StoreError as error:
            denied = _DENIED in error.why
            if denied and not needed:
                said = "denied, and not needed: this service only reads"
                self.findings.append(Finding(Part.STORE, name, Level.OK, said))
                return True
            self.findings.append(failed(Part.STORE, name, error))
            return denied
        self.findings.append(Finding(Part.STORE, name, Level.OK, said))
        return True


def look_at_store(settings: Settings, *, writes: bool, conditional: bool) -> list[Finding]:
    """Return what is to be said of the store. ``conditional``: this service commits with it."""
    try:
        store = open_store(settings)
    except GenqError as error:
        return [failed(Part.SETTINGS, "store", error)]
    visit = _Visit(store, writes, conditional)
    tries = (
        ("write", lambda: _write(visit), writes),
        ("conditional write", lambda: _create(visit), writes and conditional),
        ("read", lambda: _read(visit), True),
        ("list", lambda: _list(visit), True),
        ("delete", lambda: _delete(visit), writes),
    )
    go_on = True
    try:
        for name, call, needed in tries:
            if go_on:
                go_on = visit.try_(name, call, needed=needed)
            else:
                visit.findings.append(skipped(Part.STORE, name, "the one before failed"))
    finally:
        for name in ("a", "b"):
            with suppress(StoreError):
                if visit.written:
                    store.delete(f"{visit.key}-{name}")
    return [*visit.findings, *_server(settings)]


def _write(visit: _Visit) -> str:
    visit.store.put(f"{visit.key}-a", b"a")
    visit.written = True
    return f"{visit.store.url}/.genq-probe/"


def _create(visit: _Visit) -> str:
    key = f"{visit.key}-b"
    if _settled(visit.store, key, b"b") is Created.CREATED:
        visit.written = True
    second = _settled(visit.store, key, b"c")
    if second is Created.CREATED or visit.store.get(key) != b"b":
        raise StoreError(
            "If-None-Match is ignored: two sinks could overwrite each other.",
            fix="Use a store that honours it, or a single sink: gen-sink --single-writer",
        )
    return "a second one of the same key is refused"


def _settled(store: ObjectStore, key: str, data: bytes) -> Created:
    for _ in range(_TRIES):
        outcome = store.create(key, data, metadata={"genq-writer": "doctor"})
        if outcome in (Created.CREATED, Created.EXISTS):
            return outcome
    raise StoreError(
        "A conditional PUT is not answered, or with an error.",
        fix="Look at the service's log; a proxy before it may not let the condition through.",
    )


def _read(visit: _Visit) -> str:
    if visit.written:
        visit.store.get(f"{visit.key}-a")
        found = visit.store.stat(f"{visit.key}-b")
        if found is not None and found.metadata.get("genq-writer") != "doctor":
            raise StoreError(
                "The metadata of objects is not kept: a lost answer to a commit could not be told"
                " from somebody else's commit.",
                fix="Use a store that keeps x-amz-meta-* headers.",
            )
        return "an object, and its metadata"
    with suppress(ObjectMissingError):  # that it is not there may be known to who may read
        visit.store.get(f"{visit.key}-a")
    return "allowed"


def _list(visit: _Visit) -> str:
    count = sum(1 for _ in visit.store.list(visit.key))
    if visit.written and not count:
        raise StoreError(
            "What was just written is not listed: commits rest on that.",
            fix="Use a store with strong consistency.",
        )
    return "what was just written is there" if visit.written else "allowed"


def _delete(visit: _Visit) -> str:
    for name in ("a", "b"):
        visit.store.delete(f"{visit.key}-{name}")
    if visit.written and visit.store.stat(f"{visit.key}-a") is not None:
        raise StoreError(
            "A deleted object is still there.", fix="Use a store with strong consistency."
        )
    return "allowed"


def _server(settings: Settings) -> list[Finding]:
    from common.s3.server import server_words  # noqa: PLC0415 - beside the SDK, which is slow

    words = server_words(settings.s3_endpoint, urlsplit(settings.store).netloc)
    found = []
    if words.clock_offset_seconds is None:
        found.append(skipped(Part.STORE, "clock", "the service does not say its time"))
    else:
        found.append(
            clock_finding(Part.STORE, words.clock_offset_seconds, warn_seconds=CLOCK_SECONDS)
        )
    ours = settings.s3_region
    where = f"it comes from {origin_of('s3_region', {})}"
    if words.region and words.region != ours:
        fix = f"export {names_of('s3_region')[1]}={words.region}"
        what = f"the bucket is in {words.region}, the setting is {ours} ({where})"
        found.append(Finding(Part.STORE, "region", Level.FAIL, what, fix))
    else:
        said = f"{ours}, as the bucket says" if words.region else f"{ours} ({where})"
        found.append(Finding(Part.STORE, "region", Level.OK, said))
    return found
