"""What each kind of fault does, and how it is over again. Each act heals what it has hurt."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from tests.faults.schedule import SERVICES
from tests.faults.stage import LEASE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.schedule import Fault
    from tests.faults.stage import Stage
    from tests.faults.watch import Looker
    from tests.support.crew import Crew, Member

NANNY_SECONDS = 0.3
SLOW_SECONDS = 0.15  # each way, for every piece
SLOW_BYTES = 200_000  # a second, of answers
LOST_ANSWERS = 3
EARLY = 2  # services that are back before Redis after a reboot: they find none, and come again
UNREACHED = {4, 5}  # exits of a service that was started while Redis or storage was away
STOPPED = {143, -signal.SIGKILL, -signal.SIGTERM}  # the last: before it listened


@dataclass
class Acts:
    """Carries faults out. Two on the same victim wait for one another; others overlap."""

    stage: Stage
    crew: Crew
    looker: Looker
    start: Callable[[str], None]  # a service, (again) as it was
    load: Callable[[str], Member]  # starts the same load, under a name
    problems: list[str] = field(default_factory=list)
    restarts: int = 0
    _busy: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def act(self, fault: Fault) -> None:
        async with AsyncExitStack() as held:
            for place in _places(fault):
                await held.enter_async_context(self._busy[place])
            act = getattr(self, "_" + fault.kind.replace(".", "_"))
            await act(fault.victim, fault.leases * LEASE_SECONDS)

    async def nurse(self) -> None:
        """Start services again that ended by themselves, as systemd does; note what is odd."""
        while True:
            for name, member in list(self.crew.members.items()):
                if not name.startswith("load") and not self._busy[name].locked():
                    self._revive(name, member)
            await asyncio.sleep(NANNY_SECONDS)  # poll: what ended by itself

    def _revive(self, name: str, member: Member) -> None:
        code = member.code
        if code is None:
            return
        if code not in UNREACHED:
            self.problems.append(f"{name} ended by itself with {code}:\n{member.last_words()}")
        self.restarts += 1
        self.start(name)

    # Services

    async def _consumer_kill(self, victim: str, seconds: float) -> None:
        self.crew.members[victim].signal(signal.SIGKILL)
        await self._again(victim, seconds)

    async def _consumer_stop(self, victim: str, seconds: float) -> None:
        member = self.crew.members[victim]
        member.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)  # lasts: the fault
        member.signal(signal.SIGCONT)

    async def _consumer_term(self, victim: str, seconds: float) -> None:
        self.crew.members[victim].signal(signal.SIGTERM)
        await self._again(victim, seconds)

    _sink_kill, _sink_stop, _sink_term = _consumer_kill, _consumer_stop, _consumer_term

    async def _again(self, victim: str, seconds: float) -> None:
        member = self.crew.members[victim]
        code = await member.ended()
        if code not in STOPPED | UNREACHED:
            self.problems.append(f"{victim} ended with {code}:\n{member.last_words()}")
        await asyncio.sleep(seconds)  # lasts: the fault
        self.start(victim)

    async def _engine_kill(self, victim: str, _: float) -> None:
        for engine in self._engines(victim):
            with suppress(psutil.Error):
                engine.kill()

    async def _engine_stop(self, victim: str, seconds: float) -> None:
        engines = self._engines(victim)
        for engine in engines:
            with suppress(psutil.Error):
                engine.suspend()
        await asyncio.sleep(seconds)  # lasts: the fault
        for engine in engines:
            with suppress(psutil.Error):
                engine.resume()

    def _engines(self, victim: str) -> list[psutil.Process]:
        return self.crew.members[victim].engines()

    # Redis

    async def _redis_kill(self, _: str, seconds: float) -> None:
        await self._kill_redis()
        await asyncio.sleep(seconds)  # lasts: the fault
        await asyncio.to_thread(self.stage.redis.start)

    async def _kill_redis(self) -> None:
        # Not between the two steps of RQ's own requeue: that has a test of its own.
        async with self.looker.still:
            await asyncio.to_thread(self.stage.redis.kill)

    async def _redis_hole(self, victim: str, seconds: float) -> None:
        link = self.stage.links[victim]
        link.black_hole(on=True)
        await asyncio.sleep(seconds)  # lasts: the fault
        link.black_hole(on=False)

    async def _redis_slow(self, victim: str, seconds: float) -> None:
        link = self.stage.links[victim]
        link.latency_seconds, link.bytes_per_second = SLOW_SECONDS, SLOW_BYTES
        await asyncio.sleep(seconds)  # lasts: the fault
        link.latency_seconds, link.bytes_per_second = 0.0, 0

    async def _redis_cut(self, victim: str, _: float) -> None:
        self.stage.links[victim].reset_all()

    async def _redis_lost(self, victim: str, _: float) -> None:
        self.stage.links[victim].lose_answers(b"EVALSHA", count=LOST_ANSWERS)

    # Storage

    async def _s3_error(self, name: str, seconds: float) -> None:
        self.stage.s3.fail(name)
        await asyncio.sleep(seconds)  # lasts: the fault
        self.stage.s3.mend()

    _s3_reset, _s3_lost, _s3_slow = _s3_error, _s3_error, _s3_error

    # Others

    async def _host_reboot(self, order: str, seconds: float) -> None:
        for name in SERVICES:
            self.crew.members[name].signal(signal.SIGKILL)
        await self._kill_redis()
        for name in SERVICES:
            await self.crew.members[name].ended()
        await asyncio.sleep(seconds)  # lasts: the fault
        names = order.split()
        for name in names[:EARLY]:
            self.start(name)
        await asyncio.to_thread(self.stage.redis.start)
        for name in names[EARLY:]:
            self.start(name)

    async def _load_again(self, _: str, __: float) -> None:
        name = f"load-again-{sum(name.startswith('load-again') for name in self.crew.members)}"
        member = self.load(name)
        code = await member.ended()
        if code not in {0, *UNREACHED}:
            self.problems.append(f"the same load again ended with {code}:\n{member.last_words()}")

    async def _rq_cli(self, victim: str, _: float) -> None:
        await self.looker.command(victim)


def _places(fault: Fault) -> list[str]:
    """What a fault has for itself while it lasts, in an order that all keep."""
    area = fault.kind.partition(".")[0]
    if area == "host":
        return sorted([*SERVICES, "redis"])
    if area in ("consumer", "engine", "sink"):
        return [fault.victim]
    if fault.kind == "redis.kill":
        return ["redis"]
    return ["way to s3" if area == "s3" else f"{area} {fault.victim}"]
