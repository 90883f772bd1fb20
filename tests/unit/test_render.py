"""Thought and answer taken apart by the family's marks, in text and in token ids."""

from __future__ import annotations

import re

import pytest
from structlog.testing import capture_logs

from consumer.engine.api import Answer
from consumer.generation.render import Prompts
from consumer.generation.thinking import (
    FAMILIES,
    Parts,
    Thinking,
    cut_ids,
    family_by_template,
    opens_thought,
    split_thought,
)

CONTROL = ["<s>", "</s>", "[THINK]", "[/THINK]", "<|channel|>", "<|message|>", "<|end|>"]
CONTROL += ["<|start|>", "<|return|>", "<|START_THINKING|>", "<|END_THINKING|>"]
CONTROL += ["<|START_RESPONSE|>", "<|END_RESPONSE|>"]
HARMONY = (
    "<|channel|>analysis<|message|>hm so<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Paris.<|return|>"
)
WORDS = ["<think>", "</think>"]  # tokens of their own that decoding does not leave out


class Pieces:
    """A tokenizer of words and marks: what is a control token, decoding leaves out."""

    def __init__(self, template: str = "", *, own: tuple[str, ...] = (*CONTROL, *WORDS)) -> None:
        self._template = template
        self._own = own
        self.vocabulary: list[str] = list(own)
        self.decoded = 0

    async def load(self) -> None:
        pass

    async def template(self) -> str:
        return self._template

    async def render(self, messages, *, thinking):
        text = "".join(f"<s>{m['role']}\n{m['content']}</s>\n" for m in messages)
        opened = "<think>\n" if thinking else ""
        return await self.encode(f"{text}<s>assistant\n{opened}")

    async def encode(self, text: str) -> list[int]:
        marks = "|".join(map(re.escape, self._own)) or "(?!)"
        pieces = re.findall(rf"{marks}|\n|[^\s<\[◁]+ ?|.", text)
        self.vocabulary += [piece for piece in pieces if piece not in self.vocabulary]
        return [self.vocabulary.index(piece) for piece in pieces]

    async def decode(self, ids) -> str:
        self.decoded += 1
        return "".join(self.vocabulary[n] for n in ids if self.vocabulary[n] not in CONTROL)


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def parts(pieces: Pieces, said: str, *, given: str | None = None, opened: bool = False):
    """What becomes of an answer; ``given``: the text that the engine sends beside the tokens."""
    prompts = Prompts(pieces)
    ids = await pieces.encode(said)
    prompt = await prompts.render(user("a"), thinking=opened)
    answer = Answer(None, ids, given, "stop", len(prompt), len(ids), 0, "")
    return await prompts.parts(answer, await prompts.thinking(prompt)), ids


@pytest.mark.parametrize(
    ("template", "said", "reasoning", "content", "tokens"),
    [
        ("<think>", "<think>\nhm so\n</think>\n\nParis.</s>", "hm so", "Paris.", 6),
        ("<think>", "Paris.</s>", None, "Paris.", 0),
        ("<think>", "<think>\n\n</think>\n\nParis.</s>", "", "Paris.", 4),
        ("[THINK]..[/THINK]", "[THINK]hm so[/THINK]Paris.</s>", "hm so", "Paris.", 4),
        ("[THINK]..[/THINK]", "Paris.</s>", None, "Paris.", 0),
        (
            "<|START_THINKING|><|END_THINKING|>",
            "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Paris.<|END_RESPONSE|>",
            *("hm", "Paris.", 3),
        ),
        (
            "<|channel|>analysis",
            HARMONY,
            *("hm so", "Paris.", 11),
        ),
        ("<|channel|>", "<|channel|>final<|message|>Paris.<|return|>", None, "Paris.", 3),
    ],
)
@pytest.mark.parametrize("engine", ["tokens", "text"])
async def test_each_familys_thought_is_taken_out_by_its_tokens(  # noqa: PLR0917 - the cases
    template, said, reasoning, content, tokens, engine
) -> None:
    pieces = Pieces(template)
    given = await pieces.decode(await pieces.encode(said)) if engine == "text" else None
    found, _ = await parts(pieces, said, given=given)
    assert found == Parts(reasoning, content, reasoning_tokens=tokens)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("<think>", "<think>\nhm so"),
        ("[THINK]..[/THINK]", "[THINK]hm so"),
        ("<|channel|>", "<|channel|>analysis<|message|>hm so"),
    ],
)
async def test_a_thought_without_an_end_is_all_thought(template, said) -> None:
    found, ids = await parts(Pieces(template), said)
    assert found == Parts("hm so", "", closed=False, reasoning_tokens=len(ids))


@pytest.mark.parametrize("own", [(*CONTROL, *WORDS), tuple(CONTROL)])
@pytest.mark.parametrize("given", [True, False])
async def test_a_thought_that_the_prompt_opened_is_found_and_counted(own, given) -> None:
    """With marks that are tokens of their own, and with marks that are text like any other."""
    pieces = Pieces("<think>", own=own)
    said = "hm so\n</think>\n\nParis."
    text = said if given else None
    found, ids = await parts(pieces, said, given=text, opened=True)
    assert (found.reasoning, found.content, found.closed) == ("hm so", "Paris.", True)
    assert await pieces.decode(ids[: found.reasoning_tokens]) == "hm so\n</think>"
    cut, ids = await parts(pieces, "hm so", given="hm so" if given else None, opened=True)
    assert cut == Parts("hm so", "", closed=False, reasoning_tokens=len(ids))


async def test_an_engine_that_took_a_stop_word_off_is_believed() -> None:
    """Output ids hold the stop word, the engine's text does not."""
    said, given = "[THINK]hm[/THINK]Paris. STOP", "hmParis. "
    found, _ = await parts(Pieces("[THINK]..[/THINK]"), said, given=given)
    assert found == Parts("hm", "Paris. ", reasoning_tokens=3)


async def test_words_about_marks_are_no_thought() -> None:
    said = "People write <think> and </think> here"
    for given in (None, said):
        found, _ = await parts(Pieces("<think>"), said, given=given)
        assert found == Parts(None, said)


async def test_a_thought_that_the_template_opened_is_seen_once_per_ending() -> None:
    pieces = Pieces("<think>")
    prompts = Prompts(pieces)
    ids = await prompts.render(user("a"), thinking=True)
    assert (await prompts.thinking(ids)).opened
    before = pieces.decoded
    assert (await prompts.thinking(ids)).opened
    assert pieces.decoded == before
    plain = await prompts.render(user("a"), thinking=False)
    assert not (await prompts.thinking(plain)).opened
    closed = await pieces.encode("<s>assistant\n<think>\n\n</think>\n\n")
    assert not (await prompts.thinking(closed)).opened


@pytest.mark.parametrize(
    ("template", "said"),
    [("{{ enable_thinking }}", 0), ("{% if thinking %}", 0), ("plain", 1), ("", 0)],
)
async def test_a_switch_that_the_template_does_not_know_is_said_once(template, said) -> None:
    prompts = Prompts(Pieces(template))
    with capture_logs() as logs:
        await prompts.warm()
        for thinking in (None, True, False):
            await prompts.render(user("a"), thinking=thinking)
    assert sum("no switch for thinking" in line["event"] for line in logs) == said


def test_a_prompt_opens_a_thought_only_at_its_very_end() -> None:
    assert opens_thought("assistant\n<think>\n", Thinking())
    assert not opens_thought("<think>\n\n</think>\n\n", Thinking())
    assert not opens_thought("what is <think>?\nassistant\n", Thinking())


@pytest.mark.parametrize("marks", FAMILIES)
def test_a_family_is_known_by_its_template(marks) -> None:
    assert family_by_template(f"{{{{ '{marks.start}x{marks.end}' }}}}") is marks


async def test_a_family_is_known_by_its_tokens_where_the_template_says_nothing() -> None:
    assert (await Prompts(Pieces("plain", own=("[/THINK]",))).marks()).family == "mistral"
    assert (await Prompts(Pieces("plain", own=())).marks()).family == "think"


@pytest.mark.parametrize("template", ["<think>", "[THINK]..[/THINK]", "<|channel|>"])
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("thought", [None, "hm so"])
async def test_an_answer_that_is_written_is_taken_apart_as_it_was(
    template, opened, thought
) -> None:
    if opened and template != "<think>":
        return  # no such template opens thoughts
    pieces = Pieces(template)
    prompts = Prompts(pieces)
    prompt = await prompts.render(user("a"), thinking=opened)
    thinking = await prompts.thinking(prompt)
    ids = await prompts.written(Parts(thought, "Paris."), thinking)
    assert pieces.vocabulary[ids[-1]] == "</s>"  # as the template ends a turn
    again = await prompts.parts(Answer(None, ids, None, "stop", 1, len(ids), 0, ""), thinking)
    assert (again.reasoning or None, again.content) == (thought, "Paris.")
    assert split_thought("Paris.", Thinking()) == Parts(None, "Paris.")


def test_a_mark_far_inside_an_answer_opens_no_thought() -> None:
    thinking = Thinking(start_ids=(1,), end_ids=(2,))
    assert cut_ids([5, 5, 5, 5, 1, 6, 2, 7], thinking) is None
    assert cut_ids([5, 1, 6, 2, 7], thinking) is not None
