"""Which turns of a conversation are ours to answer, and which answers a row brings along.

A user's (or a tool's) message asks for an answer where the row ends, where somebody else than the
assistant speaks next, and where the assistant's answer follows, which ours replaces. What the
assistant said before a tool's message stays: it is the call that the tool answered, and no other
words of ours would fit what follows. So does what it said before anybody asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ASKING = frozenset({"user", "tool"})


@dataclass(frozen=True, slots=True)
class Step:
    """A turn to answer: the message ``asked`` stands before the answer, ``after`` behind it.

    ``messages[asked + 1 : after]`` is the answer that the row brings along; mostly there is none.
    """

    asked: int
    after: int


def steps(messages: Sequence[Mapping[str, Any]]) -> list[Step]:
    """Return the turns of a row that are to be answered, in order."""
    roles = [message.get("role") for message in messages]
    found = []
    for n, role in enumerate(roles):
        if role not in _ASKING:
            continue
        after = n + 1
        while after < len(roles) and roles[after] == "assistant":
            after += 1
        spoken, follows = after > n + 1, roles[after] if after < len(roles) else None
        if follows != "tool" and (spoken or follows in {None, "user", "system"}):
            found.append(Step(n, after))
    return found


def turns_to_answer(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the indices of the messages that an answer of ours follows, in order."""
    return [step.asked for step in steps(messages)]
