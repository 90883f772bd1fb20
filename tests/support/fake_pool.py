"""The token pool of the stand-in: whom it lets in, and whom it puts back when tokens outgrow it.

After SGLang's scheduler: a request is let in where its whole answer fits beside what those that
run hold and a share of what they may still write. That share falls with every calm step, and is
estimated anew at a retraction, which puts back those that have written least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST_SHARE = 0.7
LEAST_SHARE = 0.098
CALM_STEPS = (
    600  # in so many steps without a retraction the share falls from the first to the least
)
STEPS_AHEAD = 20  # a retraction makes room for so many steps of those that stay
MOST_RESERVED = 4096  # tokens of an answer that room is kept for


class Request(Protocol):
    """What the pool needs to know of a request."""

    @property
    def prompt(self) -> int:
        """Its prompt's tokens."""
        ...

    @property
    def written(self) -> int:
        """The tokens of its answer so far."""
        ...

    @property
    def most(self) -> int:
        """The limit of its answer."""
        ...


R = TypeVar("R", bound=Request)


def held(request: Request) -> int:
    """The tokens that a running request holds."""
    return request.prompt + request.written


def left(request: Request) -> int:
    """The tokens that it may still write, as the pool counts them."""
    return min(request.most - request.written, MOST_RESERVED)


def need(request: Request) -> int:
    """The room that there has to be to let a request in."""
    return held(request) + left(request)


@dataclass
class TokenPool:
    """Room for the tokens of what runs. ``size`` 0: without end, nothing is ever put back."""

    size: int = 0
    share: float = FIRST_SHARE
    retracted: int = 0
    retracted_input_tokens: int = 0
    retracted_output_tokens: int = 0

    def room(self, running: Sequence[Request]) -> float:
        """The tokens that may still be promised beside those that run."""
        if not self.size:
            return math.inf
        return self.size - sum(self.cost(one) for one in running)

    def cost(self, request: Request) -> float:
        """What a request that runs is thought to take."""
        return held(request) + self.share * left(request)

    def admits(self, request: Request, running: Sequence[Request]) -> bool:
        return not running or need(request) <= self.room(running)

    def overflows(self, running: Sequence[Request]) -> bool:
        """Whether the last one that runs finds no room for its next token."""
        return bool(self.size) and len(running) == 1 and held(running[0]) + 1 > self.size

    def retract(self, running: Sequence[R], *, steps: int = 1) -> list[R]:
        """Return whom to put back before so many steps, so that the others find room."""
        if not self.size:
            return []
        self.share -= steps * (FIRST_SHARE - LEAST_SHARE) / CALM_STEPS
        self.share = max(LEAST_SHARE, self.share)
        used = sum(map(held, running))
        if used + steps * len(running) <= self.size:
            return []
        stay = sorted(running, key=lambda one: (one.written, -one.prompt), reverse=True)
        back: list[R] = []
        ahead = max(steps, STEPS_AHEAD)
        while len(stay) > 1 and used + ahead * len(stay) > self.size:
            back.append(stay.pop())
            used -= held(back[-1])
        written = sum(one.written + ahead for one in stay)
        self.share = min(1.0, written / max(1, sum(one.most for one in stay)))
        self.retracted += len(back)
        self.retracted_input_tokens += sum(one.prompt for one in back)
        self.retracted_output_tokens += sum(one.written for one in back)
        return back
