"""Several user turns are answered one after the other; no later prompt holds an earlier thought."""

from __future__ import annotations

import pytest

from consumer.generation.conversation import Conversation
from consumer.generation.thinking import FAMILIES, Parts

MISTRAL = next(marks for marks in FAMILIES if marks.family == "mistral")


def turn(role: str, content: str, **more: object) -> dict[str, object]:
    return {"role": role, "content": content, **more}


def test_one_question_has_one_turn() -> None:
    talk = Conversation([turn("system", "s"), turn("user", "a")])
    assert talk.left == 1
    assert talk.prompt == [turn("system", "s"), turn("user", "a")]
    talk.answer("b")
    assert not talk.open


def test_turns_are_answered_one_by_one_and_fed_back() -> None:
    talk = Conversation([turn("system", "s"), turn("user", "a"), turn("user", "c")])
    assert talk.left == 2
    assert talk.prompt == [turn("system", "s"), turn("user", "a")]
    talk.answer("b")
    assert talk.left == 1
    assert talk.prompt == [
        turn("system", "s"),
        turn("user", "a"),
        turn("assistant", "b"),
        turn("user", "c"),
    ]


def test_an_answer_that_the_row_brings_is_replaced() -> None:
    talk = Conversation([turn("user", "a"), turn("assistant", "theirs"), turn("user", "c")])
    talk.answer("ours")
    assert [m["content"] for m in talk.prompt] == ["a", "ours", "c"]


def test_what_a_tool_answered_stays_and_what_follows_is_replaced() -> None:
    call = turn("assistant", "", tool_calls=[{"id": "1"}])
    messages = [
        *(turn("user", "a"), call, turn("tool", "4")),
        *(turn("assistant", "theirs"), turn("user", "c")),
    ]
    talk = Conversation(messages)
    assert talk.prompt == messages[:3]
    talk.answer("ours")
    assert talk.prompt == [*messages[:3], turn("assistant", "ours"), turn("user", "c")]


def test_without_a_question_there_is_nothing_to_answer() -> None:
    assert not Conversation([turn("system", "s")]).open


@pytest.mark.parametrize(
    ("said", "marks"),
    [
        (turn("assistant", "<think>secret</think>\n\ncalls"), FAMILIES[-1]),
        (turn("assistant", "secret\n</think>\ncalls"), FAMILIES[-1]),
        (turn("assistant", "calls", reasoning_content="secret"), FAMILIES[-1]),
        (turn("assistant", "calls", reasoning="secret"), FAMILIES[-1]),
        (turn("assistant", "calls", thinking="secret"), FAMILIES[-1]),
        (turn("assistant", "[THINK]secret[/THINK]calls"), MISTRAL),
        (turn("assistant", "<think>secret</think>calls"), MISTRAL),
    ],
)
def test_a_thought_that_the_row_carries_reaches_no_prompt(said, marks) -> None:
    talk = Conversation([turn("user", "a"), said, turn("tool", "4"), turn("user", "c")], marks)
    for _ in range(2):
        assert "secret" not in str(talk.prompt)
        assert talk.prompt[1] == turn("assistant", "calls")
        talk.answer("x")


def test_words_about_marks_are_no_thought() -> None:
    said = turn("assistant", "write <think> and </think> around it")
    talk = Conversation([turn("user", "a"), said, turn("tool", "4")])
    assert talk.prompt[1] == said
    user = turn("user", "<think>mine</think>")
    assert Conversation([user]).prompt == [user]


def test_content_that_is_no_text_is_left_to_the_template() -> None:
    said = turn("assistant", None, tool_calls=[])  # type: ignore[arg-type]
    talk = Conversation([turn("user", "a"), said, turn("tool", "4")])
    assert talk.prompt[1] == said


def test_own_answers_are_taken_turn_by_turn_with_their_thoughts_apart() -> None:
    messages = [
        *(turn("system", "s"), turn("user", "a")),
        turn("assistant", "<think>\nhm\n</think>\n\none"),
        turn("user", "b"),  # nobody answered this one
        turn("user", "c"),
        turn("assistant", "two", reasoning_content="oh"),
    ]
    talk = Conversation(messages, own=True)
    assert talk.left == 2
    assert (talk.brought.reasoning, talk.brought.content) == ("hm", "one")
    talk.answer(talk.brought.content)
    assert [m["content"] for m in talk.prompt] == ["s", "a", "one", "b", "c"]
    assert talk.brought == Parts("oh", "two")
    talk.answer("two")
    assert not talk.open
