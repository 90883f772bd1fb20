"""What a trainer learns from a completion: token ids, and which of them the model said itself.

Ids are exactly the engine's. Each generated turn is learned once, in the context that the model had
when it said it: where the next prompt repeats all that was seen and said before, both turns are one
example; where it does not (an earlier thought is never shown again), the next example begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(slots=True)
class Example:
    """Token ids, and a mask of the same length: 1 where the model said the token, else 0."""

    input_ids: list[int]
    loss_mask: list[int]

    @property
    def learned_tokens(self) -> int:
        """How many tokens are learned."""
        return sum(self.loss_mask)

    def cut(self, tokens: int) -> Example:
        """Return the first ``tokens`` of it; there may be nothing to learn in them."""
        return Example(self.input_ids[:tokens], self.loss_mask[:tokens])


def examples_of(turns: Iterable[tuple[list[int], list[int]]]) -> list[Example]:
    """Return the examples in turns of (ids seen, ids said), as ``Completion.examples`` has them.

    A turn in which nothing was said gives none. No example is without a token to learn.
    """
    made: list[Example] = []
    for seen, said in turns:
        if not said:
            continue
        known = made[-1] if made else None
        if known is not None and seen[: len(known.input_ids)] == known.input_ids:
            new = seen[len(known.input_ids) :]
            known.input_ids += [*new, *said]
            known.loss_mask += [0] * len(new) + [1] * len(said)
        else:
            made.append(Example([*seen, *said], [0] * len(seen) + [1] * len(said)))
    return made
