"""A run taken up from storage: is it there, is it the one that Redis means, and what is committed.

What waiting does not heal is told from a store that is away: it is one run's trouble, and no other
run may wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from common.errors import VerifyError
from common.objectstore import ObjectMissingError, RunPaths
from common.parts.chain import fix_format
from common.parts.owner import Owner
from common.prove import read_manifest
from common.queue.same_run import settings_digest
from consumer.sink.commit import PartWriter
from consumer.sink.recover import Ledger

if TYPE_CHECKING:
    from common.objectstore import ObjectStore
    from common.records import RunInfo, RunManifest
    from consumer.sink.tools import Tools

log = structlog.get_logger()


@dataclass(slots=True)
class Opened:
    """What a run needs once results come; made from storage."""

    manifest: RunManifest
    ledger: Ledger
    writer: PartWriter


def own_manifest(store: ObjectStore, info: RunInfo) -> RunManifest:
    """Return run.json of the run that Redis means.

    Raises:
        StoreError: the store gave no answer; call it again. Or it is of a newer genq, which
            :meth:`consumer.sink.tools.Calls.store` tells as a VerifyError.
        VerifyError: it is not there, damaged, or another run's, of the same name or another.
    """
    run, key = info.run, RunPaths(info.run).run_json
    try:
        manifest = read_manifest(store, run)
    except ObjectMissingError as error:
        raise VerifyError(
            f"Redis knows run {run}, but {store.url}/{key} is not there.",
            why="The run was removed from the store, or it was loaded into another one.",
            fix="Give the sink the GENQ_STORE that the run was loaded with, or put its objects back"
            " from a copy.",
        ) from error
    if manifest.fingerprint != info.fingerprint:
        raise VerifyError(
            f"Run {run} in Redis has other rows than {store.url}/{key}.",
            why=f"Fingerprints {info.fingerprint[:12]} and {manifest.fingerprint[:12]}.",
            fix="Give the sink the GENQ_STORE that the run was loaded with.",
        )
    if info.settings and info.settings != settings_digest(manifest):
        raise VerifyError(
            f"Run {run} in Redis has other settings than {store.url}/{key}.",
            why="Somebody has put another run.json there since it was loaded.",
            fix=f"Put run.json back from a copy; or end the run: gen-producer cancel {run}",
        )
    return manifest


def open_run(tools: Tools, info: RunInfo) -> Opened:
    """Return the run as storage has it, read to the end of its parts.

    Raises:
        StoreError: the store gave no answer; call it again.
        VerifyError: it is not the run that Redis means, or its parts cannot be trusted.
    """
    store, paths = tools.store, RunPaths(info.run)
    manifest = own_manifest(store, info)
    owner = Owner.of(manifest)
    suffix = fix_format(store, paths, tools.suffix, owner)
    if suffix != tools.suffix:
        log.warning("sink.format_kept", run=info.run, format=suffix)
    ledger = Ledger(store, paths, manifest, suffix)
    ledger.load(tools.folder)
    writer = PartWriter(store, paths, ledger, new_token=owner.new_token)
    for found in ledger.catch_up():
        if not found.indexed:
            writer.owe(found.index)
    writer.write_indexes()
    ledger.save(tools.folder)
    log.info("sink.run_opened", run=info.run, committed=len(ledger), parts=ledger.next)
    return Opened(manifest, ledger, writer)
