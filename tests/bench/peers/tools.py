"""Each tool of the comparison: how it is loaded, started and restarted, and where results lie."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from common.ids import RunName
from common.objectstore import ObjectMissingError, RunPaths
from common.parts.chain import read_format, walk
from common.s3 import open_store
from common.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[3]
CLIENTS = Path(__file__).parent / "clients"
RUN = "peers"
REDELIVER_SECONDS = 20  # of every tool that can be told
PART_SECONDS = 2


@dataclass(frozen=True)
class Tool:
    """``ends``: the program ends by itself. ``again``: commands of a restart beside ``work``."""

    name: str
    work: tuple[tuple[str, ...], ...]
    load: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    ends: bool = False
    note: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where one trial happens."""

    folder: Path
    engines: tuple[str, ...]
    redis_url: str
    store: Mapping[str, str]
    rows: int
    in_flight: int
    venv: Path

    @property
    def results(self) -> Path:
        return self.folder / "results.jsonl"

    @property
    def input(self) -> Path:
        return self.folder / f"{RUN}.jsonl"

    def env(self) -> dict[str, str]:
        ours = {f"GENQ_{name.upper()}": value for name, value in self.store.items()}
        return {
            **os.environ,
            **ours,
            "GENQ_REDIS_URL": self.redis_url,
            "GENQ_STATE_DIR": str(self.folder / "state"),
            "GENQ_LEASE_SECONDS": str(REDELIVER_SECONDS),
            "GENQ_RENEW_SECONDS": "5",
            "GENQ_SINK_SECONDS": str(PART_SECONDS),
            "GENQ_HONESTY": "false",
            "PEERS_ENGINES": " ".join(self.engines),
            "PEERS_RESULTS": str(self.results),
            "PEERS_BROKER": self.redis_url,
            "PEERS_ROWS": str(self.rows),
            "PEERS_IN_FLIGHT": str(self.in_flight),
            "PEERS_REDELIVER_SECONDS": str(REDELIVER_SECONDS),
        }


def rows_of(tool: Tool, place: Place) -> Counter[int]:
    """How often each row is in the results: whole lines of the file, or rows of committed parts."""
    if tool.name == "genq":
        return _committed(place)
    found: Counter[int] = Counter()
    if place.results.exists():
        for line in place.results.read_bytes().split(b"\n")[:-1]:
            try:
                found[json.loads(line)["id"]] += 1
            except ValueError:
                continue  # cut by the kill: nobody can read it
    return found


def _committed(place: Place) -> Counter[int]:
    store, paths = open_store(load_settings(**place.store)), RunPaths(RunName(RUN))
    try:
        suffix = read_format(store, paths)
    except ObjectMissingError:
        suffix = None
    found: Counter[int] = Counter()
    for part in walk(store, paths, suffix) if suffix else ():
        found.update(part.index.items)
    return found


def tools(place: Place) -> list[Tool]:
    python = str(place.venv / "bin" / "python")
    flight = str(place.in_flight)

    def tool(name: str) -> str:
        return str(place.venv / "bin" / name)

    def client(name: str) -> str:
        return str(CLIENTS / f"{name}.py")

    model = str(place.folder.parent / "tiny-model")
    ours = str(Path(sys.executable).parent)
    celery = ("worker", "--pool", "threads", "-c", flight, "--loglevel", "ERROR")
    return [
        Tool(
            "genq",
            load=(
                f"{ours}/gen-producer",
                "load",
                str(place.input),
                "--run",
                RUN,
                "--model",
                model,
                "--max-tokens",
                "1000",
                "--canary-rows",
                "0",
                "--quiet",
            ),
            work=(
                *(
                    (f"{ours}/gen-consumer", "--url", url, "--model", model)
                    for url in place.engines
                ),
                (f"{ours}/gen-sink",),
            ),
            note="results as committed parts on a real S3 server; a sink that seals after 2 s;"
            " without the honesty check and the canary, which no other has",
        ),
        Tool(
            "conversation loop",
            work=((python, client("conversation_loop")),),
            ends=True,
            note="threads, a new OpenAI client a conversation; restarted, it skips as many rows as"
            " the output has lines",
        ),
        Tool(
            "openai asyncio loop",
            work=((python, client("openai_loop")),),
            ends=True,
            note="one client an engine; restarted, it begins anew",
        ),
        Tool(
            "celery, late ack",
            load=(python, client("celery_app"), "load"),
            work=((tool("celery"), "-A", "celery_app", *celery),),
            note="threads; `task_acks_late`, `visibility_timeout` 20 s",
        ),
        Tool(
            "celery, defaults",
            load=(python, client("celery_early_app"), "load"),
            work=((tool("celery"), "-A", "celery_early_app", *celery),),
            note="threads; acknowledged before the work",
        ),
        Tool(
            "dramatiq",
            load=(python, client("dramatiq_app"), "load"),
            work=((tool("dramatiq"), "dramatiq_app", "--processes", "1", "--threads", flight),),
            note=(
                "threads; `heartbeat_timeout` 20 s. A dead worker's messages are taken back by"
                " chance, at one broker call in a thousand (`maintenance_chance`): late where idle"
            ),
        ),
        Tool(
            "rq",
            load=(python, client("rq_app"), "load"),
            work=(
                (
                    tool("rq"),
                    "worker-pool",
                    "peers",
                    "-n",
                    flight,
                    "-w",
                    "rq_worker.Preloaded",
                    "-u",
                    place.redis_url,
                    "-q",
                ),
            ),
            again=(tool("rq"), "requeue", "--all", "--queue", "peers", "-u", place.redis_url),
            note="a worker process for each request in flight, `Retry(max=3)`; restarted with"
            " `rq requeue --all`",
        ),
        Tool(
            "taskiq",
            load=(python, client("taskiq_app"), "load"),
            work=(
                (
                    tool("taskiq"),
                    "worker",
                    "taskiq_app:broker",
                    "--workers",
                    "1",
                    "--max-async-tasks",
                    flight,
                    "--log-level",
                    "ERROR",
                ),
            ),
            note=(
                "asyncio; the stream broker, `idle_timeout` and its lock at 20 s. What a dead"
                " worker had read is taken back only when new tasks come (taskiq-redis 1.2)"
            ),
        ),
    ]
