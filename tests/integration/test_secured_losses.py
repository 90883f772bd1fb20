"""What rarely happens goes by the users of deploy/users.acl, too: kills, losses, steering."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest
import redis.asyncio

from common.audit import check_counts
from common.ids import RunName
from common.keys import RunKeys
from common.queue.prompts import QueueLimits
from common.queue.results import GROUP
from common.queue.run_state import Runs
from tests.support.secured import secured_redis
from tests.support.secured_run import DONE_WITHOUT, ITEMS, SecuredRun
from tests.support.servers import eventually_sync

if TYPE_CHECKING:
    import subprocess

    from common.audit import RunCounts

RUN, OTHER = RunName("secured-losses"), RunName("secured-cancelled")
KEYS = RunKeys(RUN)
GOOD = ITEMS - 1  # one row is too long
SECONDS = 60.0
SHORT = {"GENQ_LEASE_SECONDS": "3", "GENQ_RENEW_SECONDS": "0.5", "GENQ_RETRY_BASE_SECONDS": "0.2"}
SLOW = ("--", "--token-seconds", "0.03", "--answer-tokens", "40")


class Crew:
    """Services of the users, whose own folders are their hosts; and a look by the monitor."""

    def __init__(self, this: SecuredRun) -> None:
        self.this = this
        self.all: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *words: str) -> None:
        user = name.partition("-")[0]
        state = {"GENQ_STATE_DIR": str(self.this.folder / f"state-{name}")}
        self.all[name] = self.this.start(user, f"gen-{user}", *words, name=name, **SHORT, **state)

    def consume(self, name: str) -> None:
        self.start(name, "--model", self.this.model, "--max-running", "4", *SLOW)

    def kill(self, *names: str) -> None:
        for name in names:
            assert self.all[name].poll() is None, self.words(name)
            self.all[name].kill()  # -9: the service alone, which says goodbye to nobody
            self.all.pop(name).wait()

    def words(self, name: str) -> str:
        return (self.this.folder / f"{name}.log").read_text()[-3000:]

    def alive(self) -> bool:
        for name, process in self.all.items():
            assert process.poll() is None, self.words(name)
        return True

    def counts(self, run: RunName) -> RunCounts:
        self.alive()
        counts = asyncio.run(self._sample(run))
        assert check_counts(counts) == []
        return counts

    async def _sample(self, run: RunName) -> RunCounts:
        async with redis.asyncio.Redis.from_url(self.this.server.url("monitor")) as client:
            return await Runs(client, QueueLimits()).sample(run)

    def until(self, run: RunName, **wanted: object) -> None:
        def reached() -> bool:
            counts = self.counts(run)
            return all(getattr(counts, name) == value for name, value in wanted.items())

        eventually_sync(reached, SECONDS)

    def end(self) -> list[int]:
        for process in self.all.values():
            process.send_signal(signal.SIGTERM)
        return [process.wait(100) for process in self.all.values()]


@pytest.fixture(scope="module")
def server():
    with secured_redis() as server:
        yield server


@pytest.fixture
def crew(server, s3_server, tmp_path):
    crew = Crew(SecuredRun(server, s3_server, tmp_path, prefix="secured-losses"))
    yield crew
    for process in crew.all.values():
        process.kill()
        process.wait()


@pytest.mark.row("C10")
def test_losses_and_steering_need_no_more_than_each_service_may_do(server, crew):
    this = crew.this
    with server.client("admin") as admin:
        server.denials()
        this.load(RUN)
        take_over_from_killed_ones(crew, admin)
        put_back_what_failed(crew)
        cancel_another(crew)
        lose_it_in_mid_run(crew, admin)
    verify = ("monitor", "gen-producer", "verify")
    for run in (RUN, OTHER):  # the sink finishes a run a moment after its last item
        eventually_sync(lambda run=run: this.call(*verify, run, "--allow-failures") == 0, SECONDS)
    assert crew.end() == [143, 143]
    assert {(entry["object"], entry["reason"]) for entry in server.denials()} <= DONE_WITHOUT


def take_over_from_killed_ones(crew, admin) -> None:
    """A consumer is killed with leases, a sink with results in hand; others go on."""
    crew.consume("consumer-killed")
    crew.start("sink-killed", "--rows", "1000", "--seconds", "600")  # it stores nothing by then
    eventually_sync(lambda: crew.alive() and in_hand(admin) and admin.zcard(KEYS.lease), SECONDS)
    crew.kill("consumer-killed", "sink-killed")
    assert in_hand(admin)
    assert admin.zcard(KEYS.lease)
    crew.consume("consumer-next")
    crew.start("sink-next", "--rows", "10", "--seconds", "0.2")
    crew.until(RUN, state="closed", committed=GOOD, dead=1)


def in_hand(admin) -> int:
    """How many results a sink has read that are not stored."""
    if not admin.exists(KEYS.stream) or not admin.xinfo_groups(KEYS.stream):
        return 0
    return admin.xpending(KEYS.stream, GROUP)["pending"]


def put_back_what_failed(crew) -> None:
    crew.this.must("producer", "gen-producer", "requeue", RUN)
    crew.until(RUN, state="closed", committed=GOOD, dead=1)


def cancel_another(crew) -> None:
    crew.this.load(OTHER)
    crew.this.must("producer", "gen-producer", "priority", OTHER, "3")
    under_way(crew)
    crew.this.must("producer", "gen-producer", "cancel", OTHER, "--yes")
    crew.until(OTHER, state="cancelled", queued=0, leased=0, generated=0)
    crew.this.must("monitor", "gen-producer", "status", OTHER)


def lose_it_in_mid_run(crew, admin) -> None:
    """Loaded again, it is no longer cancelled; consumer and sink live through what follows."""
    crew.this.load(OTHER)
    under_way(crew)
    admin.flushall()
    crew.this.must("producer", "gen-producer", "load", "--run", OTHER)
    crew.until(OTHER, state="closed", committed=GOOD, dead=1)


def under_way(crew) -> None:
    eventually_sync(lambda: crew.counts(OTHER).leased > 0, SECONDS)
