"""`gen-producer exporter`: runs, queues and the fleet for Prometheus. Reads Redis, changes nothing.

One look every few seconds, however often and by how many it is scraped: a handful of commands and
one script a run, whatever the run's size. Storage is not asked.
"""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from common.errors import EpochError, Exit, QueueError, UsageError
from common.patience import once_there
from common.queue.run_state import Runs
from common.queue.server import server_facts
from common.redis_client import connect
from common.telemetry.catalogue import listing
from common.telemetry.logs import setup_logging
from common.telemetry.metrics import render, serve_metrics
from common.telemetry.pulse import beating
from producer.fleet import Fleet, Looks, readings
from producer.status.data import SPANS

if TYPE_CHECKING:
    import redis.asyncio

    from common.settings import Settings
    from common.telemetry.readings import Readings
    from producer.console import Console

DEFAULT_PORT = 9817
JSON_VERSION = 1

log = structlog.get_logger()


def run_exporter(
    settings: Settings, console: Console, *, interval_seconds: float, once: bool
) -> Exit:
    """Serve until a signal; with ``once`` print the page and end.

    Raises:
        QueueError: Redis cannot be used; at the start only, and with ``once``.
        ConflictError: another process has the port.
        UsageError: the console's ``--json`` was given without ``once``.
    """
    if once:
        read = asyncio.run(_look_once(settings))
        console.result(render(read)[0].decode().rstrip("\n"), _as_data(read))
        return Exit.DONE
    if console.json:
        raise UsageError(
            "A page that is served has no JSON form.",
            why="--json was given without --once or --list.",
            fix="gen-producer exporter --once --json",
        )
    setup_logging(level=settings.log_level, form=settings.log_format)
    port = settings.metrics_port or DEFAULT_PORT
    settings = settings.model_copy(update={"metrics_port": port})
    return asyncio.run(_serve(settings, interval_seconds))


def show_list(console: Console) -> Exit:
    """Show every metric of every service, as ``docs/metrics.md`` has them."""
    found = listing()
    width = max(len(str(one["name"])) for one in found)
    lines = [f"{one['name']!s:{width}}  {one['help']}" for one in found]
    console.result("\n".join(lines), {"version": JSON_VERSION, "metrics": found})
    return Exit.DONE


class Exporter:
    """Looks at Redis, and keeps what was seen for whoever scrapes."""

    def __init__(self, client: redis.asyncio.Redis, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._runs = Runs(client, settings.limits())
        self._seen = (Fleet(), Looks())

    async def look(self) -> None:
        """Look once.

        Raises:
            QueueError: Redis did not answer; the page then says so.
        """
        began = time.monotonic()
        looks = replace(self._seen[1], looks=self._seen[1].looks + 1)
        try:
            fleet = await self._look()
        except QueueError:
            self._seen = (Fleet(), replace(looks, up=False, failed=looks.failed + 1))
            raise
        seconds = time.monotonic() - began
        self._seen = (fleet, replace(looks, up=True, seconds=seconds, last=time.time()))

    async def _look(self) -> Fleet:
        runs, ended = [], {}
        for info in await self._runs.list():
            with suppress(EpochError):  # it went between the two calls
                counts = await self._runs.sample(info.run)
                runs.append((info, counts))
                if info.state == "open" and not counts.settled:
                    ended[info.run] = await self._runs.ended_since(info.run, counts.at, SPANS)
        return Fleet(
            runs=runs,
            ended=ended,
            workers=await self._runs.workers(),
            suspended=await self._runs.suspended(),
            server=await server_facts(self._client),
        )

    def read(self) -> Readings:
        """Return what was seen last; may be called from any thread."""
        return readings(*self._seen, self._settings)

    async def keep_looking(self, interval_seconds: float) -> None:
        """Look again and again, for ever; an outage is said once, and once that it is over."""
        failing = False
        while True:
            try:
                await self.look()
            except QueueError as error:
                if not failing:
                    log.warning("Redis cannot be read, trying again", why=error.what, fix=error.fix)
                failing = True
            else:
                if failing:
                    log.info("Redis can be read again")
                failing = False
            await asyncio.sleep(interval_seconds)


async def _look_once(settings: Settings) -> Readings:
    async with await connect(settings, name="exporter") as client:
        exporter = Exporter(client, settings)
        await exporter.look()
    return exporter.read()


def _as_data(read: Readings) -> dict[str, Any]:
    samples = [
        {"name": sample.name, "labels": sample.labels, "value": sample.value}
        for family in read.collect()
        for sample in family.samples
    ]
    return {"version": JSON_VERSION, "samples": samples}


async def _serve(settings: Settings, interval_seconds: float) -> Exit:
    client = await once_there(
        lambda: connect(settings, name="exporter"), seconds=settings.wait_seconds
    )
    async with client, beating() as pulse:
        exporter = Exporter(client, settings)
        with serve_metrics(settings, exporter.read, healthy=lambda: pulse.alive, flag="--port"):
            log.info("exporter.started", host=settings.metrics_host, port=settings.metrics_port)
            looking = asyncio.create_task(exporter.keep_looking(interval_seconds), name="looking")
            asked = asyncio.create_task(_asked_to_stop(), name="asked")
            await asyncio.wait({looking, asked}, return_when=asyncio.FIRST_COMPLETED)
            looking.cancel()
            if not asked.done():
                looking.result()  # raises what ended it: a bug of ours
            return await asked


async def _asked_to_stop() -> Exit:
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[Exit] = loop.create_future()

    def ask(code: Exit) -> None:
        if not asked.done():
            asked.set_result(code)

    for number, code in ((signal.SIGTERM, Exit.TERMINATED), (signal.SIGINT, Exit.INTERRUPTED)):
        loop.add_signal_handler(number, ask, code)
    return await asked
