"""Several user turns are answered one after the other; what a row brings along is kept."""

from __future__ import annotations

from common.turns import turns_to_answer
from consumer.generation.render import Conversation, Prompts


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_one_question_has_one_turn() -> None:
    talk = Conversation([turn("system", "s"), turn("user", "a")])
    assert talk.last
    assert talk.prompt == [turn("system", "s"), turn("user", "a")]
    talk.answer("b")
    assert not talk.open


def test_turns_are_answered_one_by_one_and_fed_back() -> None:
    talk = Conversation([turn("system", "s"), turn("user", "a"), turn("user", "c")])
    assert not talk.last
    assert talk.prompt == [turn("system", "s"), turn("user", "a")]
    talk.answer("b")
    assert talk.last
    assert talk.prompt == [
        turn("system", "s"),
        turn("user", "a"),
        turn("assistant", "b"),
        turn("user", "c"),
    ]


def test_assistant_and_tool_turns_of_the_row_are_context() -> None:
    messages = [
        turn("user", "a"),
        turn("assistant", "calls"),
        turn("tool", "4"),
        turn("assistant", "b"),
        turn("user", "c"),
    ]
    assert turns_to_answer(messages) == [4]
    assert Conversation(messages).prompt == messages
    assert turns_to_answer(messages[:3]) == [2]


def test_without_a_question_there_is_nothing_to_answer() -> None:
    assert turns_to_answer([turn("system", "s")]) == []


class Words:
    """A tokenizer of whole words; counts how often it is asked to decode."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.decoded = 0

    async def render(self, messages, *, thinking):
        text = " ".join(m["content"] for m in messages) + (" <think>" if thinking else " go")
        self.words += text.split()
        return list(range(len(self.words) - len(text.split()), len(self.words)))

    async def decode(self, ids):
        self.decoded += 1
        return " ".join(self.words[n] for n in ids)


async def test_a_thought_that_the_template_opened_is_seen_once_per_ending() -> None:
    words = Words()
    prompts = Prompts(words)
    ids = await prompts.render([turn("user", "a")], thinking=True)
    assert (await prompts.thinking(ids)).opened
    assert (await prompts.thinking(ids)).opened
    assert words.decoded == 1
    plain = await prompts.render([turn("user", "a")], thinking=False)
    assert not (await prompts.thinking(plain)).opened
