"""Which fault strikes when, drawn from a seed. Pure.

The same seed gives the same faults in the same order, each at the same share of answered items;
what they meet there depends on the machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CONSUMERS = ("consumer-0", "consumer-1", "consumer-2")
SINKS = ("sink-0", "sink-1")
SERVICES = (*CONSUMERS, *SINKS)
FIRST, LAST = 0.03, 0.85  # shares of answered items between which faults strike

# kind -> whom it may strike, and how long it lasts, in leases
KINDS = {
    "consumer.kill": (CONSUMERS, (0.0, 1.5)),  # SIGKILL; started again after that time
    "consumer.stop": (CONSUMERS, (1.1, 2.0)),  # SIGSTOP beyond the lease, then SIGCONT
    "consumer.term": (CONSUMERS, (0.0, 1.0)),  # SIGTERM; started again once it has drained
    "engine.kill": (CONSUMERS, (0.0, 0.0)),
    "engine.stop": (CONSUMERS, (0.3, 1.0)),
    "sink.kill": (SINKS, (0.0, 1.5)),
    "sink.stop": (SINKS, (1.1, 3.0)),  # past the time when the other one takes its entries over
    "sink.term": (SINKS, (0.0, 1.0)),
    "redis.kill": (("redis",), (0.0, 1.0)),  # SIGKILL; started again on its append-only file
    "redis.hole": (SERVICES, (1.1, 2.0)),  # nothing passes, nothing is refused
    "redis.slow": (SERVICES, (1.0, 2.0)),
    "redis.cut": (SERVICES, (0.0, 0.0)),  # every connection is reset
    "redis.lost": (SERVICES, (0.0, 0.0)),  # a few scripts are carried out, their answers lost
    # Names of faults of tests/support/s3_proxy.py; every request meets them.
    "s3.error": (("500", "503", "429"), (0.3, 1.0)),
    "s3.reset": (("reset", "cut"), (0.3, 1.0)),
    "s3.lost": (("answer lost", "repeat"), (0.3, 1.0)),
    "s3.slow": (("hold", "trickle", "timeout"), (0.5, 1.5)),
    "host.reboot": (("all",), (0.0, 0.5)),  # all services and Redis at once; back in any order
    "load.again": (("producer",), (0.0, 0.0)),
    "rq.cli": (("info", "requeue"), (0.0, 0.0)),  # both, this one first
}
HANDS = 3  # short runs among which all kinds are dealt


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: it strikes when the share ``at`` of the items is answered."""

    at: float
    kind: str
    victim: str  # of a reboot: all, in the order in which they come back
    leases: float

    def __str__(self) -> str:
        return f"{self.at:6.1%}  {self.kind:<14} {self.victim:<11} {self.leases:.1f} leases"


def draw(seed: int, count: int) -> list[Fault]:
    """Return ``count`` faults, the earliest first; no kind comes twice before each came once."""
    chance = random.Random(seed)
    kinds: list[str] = []
    while len(kinds) < count:
        kinds += chance.sample(sorted(KINDS), len(KINDS))
    return _strikes(chance, seed, kinds[:count])


def deal(seed: int) -> list[Fault]:
    """Return the faults of a short run; ``HANDS`` seeds in a row have every kind among them."""
    deck = random.Random("the deck").sample(sorted(KINDS), len(KINDS))
    return _strikes(random.Random(f"hand {seed}"), seed, deck[(seed - 1) % HANDS :: HANDS])


def _strikes(chance: random.Random, seed: int, kinds: Sequence[str]) -> list[Fault]:
    faults = []
    for kind in kinds:
        victims, (shortest, longest) = KINDS[kind]
        at = chance.uniform(FIRST, LAST)
        faults.append(Fault(at, kind, chance.choice(victims), chance.uniform(shortest, longest)))
    faults.sort(key=lambda fault: fault.at)
    return [_with_order(fault, seed, position) for position, fault in enumerate(faults)]


def _with_order(fault: Fault, seed: int, position: int) -> Fault:
    """Name the victims of a reboot in the order in which they come back.

    Drawn by a generator of its own, so that all else stays as the recorded runs had it.
    """
    if fault.kind != "host.reboot":
        return fault
    chance = random.Random(f"reboot {seed} {position}")
    return replace(fault, victim=" ".join(chance.sample(SERVICES, len(SERVICES))))


def kills_of_the_load(seed: int, count: int) -> list[float]:
    """Return after how many seconds each of the first loads is killed."""
    chance = random.Random(f"load {seed}")
    return [chance.uniform(0.05, 1.0) for _ in range(count)]
