"""Which turns are ours to answer: by who speaks next, and what a tool's message pins down."""

from __future__ import annotations

import pytest

from common.turns import Step, steps, turns_to_answer

LETTERS = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


def talk(letters: str) -> list[dict[str, str]]:
    return [{"role": LETTERS[letter], "content": letter} for letter in letters]


@pytest.mark.parametrize(
    ("letters", "answered"),
    [
        ("", []),
        ("s", []),
        ("u", [Step(0, 1)]),
        ("su", [Step(1, 2)]),
        ("suu", [Step(1, 2), Step(2, 3)]),
        ("uau", [Step(0, 2), Step(2, 3)]),  # the row's own answer is replaced
        ("uaua", [Step(0, 2), Step(2, 4)]),
        ("uaau", [Step(0, 3), Step(3, 4)]),
        ("uat", [Step(2, 3)]),  # what a tool answered stays
        ("uaatau", [Step(3, 5), Step(5, 6)]),
        ("uatt", [Step(3, 4)]),
        ("uatatau", [Step(4, 6), Step(6, 7)]),
        ("au", [Step(1, 2)]),  # a greeting
        ("sau", [Step(2, 3)]),
        ("usu", [Step(0, 1), Step(2, 3)]),
        ("utu", [Step(1, 2), Step(2, 3)]),
    ],
)
def test_turns_are_found_by_who_speaks_next(letters, answered):
    assert steps(talk(letters)) == answered
    assert turns_to_answer(talk(letters)) == [step.asked for step in answered]
