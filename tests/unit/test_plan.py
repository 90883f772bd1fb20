"""What a plan says of a data set, and that it says it without storing anything."""

from __future__ import annotations

import io
import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.codec import dumps
from common.errors import Exit
from common.records import Row, RunSettings, Sampling
from producer import cli
from producer.load.lengths import (
    Context,
    LengthCheck,
    check_note,
    estimate,
    length_check,
    most_tokens,
    prompts_of,
    too_long,
)
from producer.plan.cost import Measured, Rates, cost_of, output_of
from producer.plan.survey import Survey
from producer.plan.tally import Histogram, Reasons, Repeats
from producer.sources.records import Place
from tests.support.tiny_tokenizer import build_model_folder

IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
ROWS = [
    {"id": 1, "prompt": "Hello"},
    {"id": 1, "prompt": "Hello"},
    {"id": 1, "prompt": "Goodbye", "max_tokens": 5},
    {"turns": ["one", "two"]},
    {"messages": [{"role": "user", "content": [IMAGE]}]},
    {"prompt": 17},
    {"prompt": "x" * 600},
    {"messages": [{"role": "tool", "content": "42"}]},
]
# <|im_start|>user\n ... <|im_end|>\n<|im_start|>assistant\n: a byte is a token
MARKS = 19


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_model_folder(tmp_path_factory.mktemp("model") / "tiny", context=600)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def plan(monkeypatch, capsys):
    def run(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["gen-producer", "plan", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        assert ended.value.code == code, said
        return said

    return run


def test_the_whole_plan_as_data(plan, data, model):
    words = (data, "--model", model, "--on-error", "skip", "--json")
    found = json.loads(plan(*words, "--expect-tokens", 36, "--tokens-per-second", 0.01).out)
    assert found["version"] == 1
    assert found["rows"] == {
        "read": 8,
        "usable": 5,
        "several_turns": 1,
        "with_own_settings": {"max_tokens": 1},
    }
    assert {name: shape["rows"] for name, shape in found["shapes"].items()} == {
        "prompt": 4,
        "turns": 1,
        "messages": 1,
    }
    assert found["shapes"]["turns"]["first"] == {"file": str(data), "line": 4}
    assert "two" in found["shapes"]["turns"]["example"]
    doubles = found["duplicates"]
    assert doubles["same_id_same_prompt"] == doubles["same_id_other_prompt"] == 1
    assert doubles["same_prompt"] == 1
    (other,) = doubles["other_prompt_examples"]
    assert (other["line"], other["first"]["line"]) == (3, 1)
    tokens = found["prompt_tokens"]
    assert tokens["exact"]
    assert tokens["least"] == MARKS + 3
    assert tokens["total"] == 4 * MARKS + 5 + 5 + 7 + 3
    assert tokens["histogram"] == [{"low": 16, "high": 31, "rows": 4}]
    long = found["too_long"]
    assert (long["context"], long["model_context"], long["rows"]) == (600, 600, 1)
    assert long["examples"] == [{"file": str(data), "line": 7, "tokens": 600 + MARKS}]
    reasons = [one["reason"] for one in found["refused"]["reasons"]]
    assert found["refused"]["rows"] == len(reasons) == 2
    assert any("type image_url" in reason for reason in reasons)
    assert "prompt must be a string" in reasons
    assert found["template_refuses"]["rows"] == 1
    assert "unknown role tool" in found["template_refuses"]["reasons"][0]["reason"]
    assert (found["output"]["answers"], found["output"]["tokens"]) == (6, 216)
    assert found["cost"] == {"gpu_hours": 6.0, "wall_hours": 6.0, "price": None}


def test_the_screen_fits_and_needs_no_colour(plan, data, model, monkeypatch):
    monkeypatch.chdir(data.parent)
    data = data.name
    options = ("--max-tokens", 9, "--tokens-per-second", 100, "--gpus", 2, "--price", 3)
    said = plan(data, "--model", model, "--context", 500, *options, code=3)
    *lines, last = said.out.splitlines()
    assert max(map(len, lines)) <= 100
    assert last.startswith(f"Next: gen-producer load {data} ")
    assert "\x1b" not in said.out
    for words in (
        "5 of 8 can be loaded, 3 cannot",
        f"{data}:3 has the id of line 1",
        "1 rows leave no room for an answer: 500 tokens by --context 500, 600 by the model",
        f"{data}:7: 619 tokens",
        "5 completions (6 answers)",
        "max_tokens: no more than this",
        "on 2 GPUs",
        "--on-error skip",
    ):
        assert words in said.out, (words, said.out)
    assert "3 of 8 rows cannot be loaded" in said.err
    assert "1 are too long" in said.err


def test_where_no_row_can_be_loaded_passing_over_them_is_no_way_out(plan, tmp_path):
    path = tmp_path / "all-bad.jsonl"
    path.write_text('{"question": "a"}\n{"question": "b"}\n')
    said = plan(path, code=3).err
    assert "2 of 2 rows cannot be loaded" in said
    assert "Mend them: nothing else is left to load." in said
    assert "--on-error skip" not in said


def test_the_next_command_of_standard_input_names_a_run(plan, data, monkeypatch):
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(data.read_bytes())))
    monkeypatch.setattr(sys, "stdin", stdin)
    last = plan("-", "--limit", 3, "--on-error", "skip").out.splitlines()[-1]
    assert last.startswith("Next: gen-producer load - --limit 3 --run NAME")


def test_where_only_the_length_is_missing_it_alone_is_asked_for(plan, data):
    rates = ("--tokens-per-second", 100, "--gpus", 2, "--price", 3)
    said = plan(data, "--on-error", "skip", *rates).out
    assert "give --tokens-per-second" not in said
    assert "Cost       give --expect-tokens or --like" in said
    said = plan(data, "--on-error", "skip").out
    assert "Cost       give --tokens-per-second (generated, of one GPU), --gpus and --price" in said


def test_without_a_tokenizer_it_is_an_estimate_and_called_one(plan, data, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    said = plan(data, "--context", 100, "--on-error", "skip")
    assert "estimated from letters (may be off by half): no model is named" in said.out
    assert "by the estimate 1 rows leave no room for an answer, and none is" in said.out
    assert "6 of 8 can be loaded" in said.out  # a guess refuses none
    said = plan(data, "--context", 1000, "--on-error", "skip")
    room = (
        "Too long   by the estimate no row; the tokenizer alone can tell: 1,000 tokens by --context"
    )
    assert room in said.out
    said = plan(data, "--model", "nobody/nothing", "--on-error", "skip")
    assert "The tokenizer of nobody/nothing cannot be loaded" in said.out
    assert "Too long   not known" in said.out


@pytest.mark.parametrize(("word", "code"), [("nothing.jsonl", 3), (None, 2)])
def test_what_is_not_there_is_an_error(plan, word, code, tmp_path):
    plan(*([tmp_path / word] if word else []), code=code)


@pytest.mark.parametrize("content", ["", "\n \n", '{"nothing": 1}\n'])
def test_a_data_set_without_a_row_to_load_is_refused_as_load_refuses_it(plan, tmp_path, content):
    (tmp_path / "a.jsonl").write_text(content)
    said = plan(tmp_path / "a.jsonl", "--on-error", "skip", code=Exit.INPUT)
    assert "0 of " in said.out
    assert "Next: " not in said.out
    assert "a.jsonl holds no row that can be loaded." in said.err


def test_a_file_that_cannot_be_read_to_its_end_is_refused_as_load_refuses_it(plan, data, tmp_path):
    (tmp_path / "cut.json").write_text('[{"prompt": "x"},')
    said = plan(data, tmp_path / "cut.json", "--on-error", "skip", code=Exit.INPUT)
    assert "7 of 10 can be loaded, 3 cannot" in said.out
    assert "cut.json:1: the JSON array is cut short" in " ".join(said.out.split())
    assert "Next: " not in said.out
    assert "Files that cannot be read to their end: 1." in said.err
    assert "--on-error" not in said.err


def test_what_counts_tokens_says_how_it_is_installed(plan, data, model, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    said = plan(data, "--model", model, "--on-error", "skip")
    assert "pip install '.[tokens]'" in said.out


@settings(max_examples=60)
@given(st.lists(st.integers(0, 2**40), min_size=1))
def test_a_histogram_is_right_to_three_per_cent(values):
    lengths = Histogram()
    for value in values:
        lengths.add(value)
    values.sort()
    assert (lengths.least, lengths.most, lengths.total) == (values[0], values[-1], sum(values))
    for share in (0.5, 0.9, 1.0):
        exact = values[max(0, -(-int(share * 10) * len(values) // 10) - 1)]
        assert exact <= lengths.quantile(share) <= exact * 1.04 + 1
    bars = lengths.bars()
    assert sum(bar.rows for bar in bars) == len(values)
    for bar in bars:
        assert bar.rows == sum(bar.low <= value <= bar.high for value in values)


@settings(max_examples=10)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([b"x", b"y"]))))
def test_repeats_are_those_of_a_plain_count(tmp_path_factory, rows):
    ids, prompts, same, other, equal = {}, set(), 0, 0, 0
    with Repeats(tmp_path_factory.mktemp("repeats")) as repeats:
        for line, (name, prompt) in enumerate(rows, start=1):
            repeats.add(name, prompt, Place("f", line))
            equal += prompt in prompts
            prompts.add(prompt)
            if name is not None:
                if ids.setdefault(name, prompt) != prompt:
                    other += 1
                else:
                    same += line != min(n for n, row in enumerate(rows, 1) if row[0] == name)
        found = repeats.found()
    assert (found.same_id_same_prompt, found.same_id_other_prompt) == (same, other)
    assert found.same_prompt == equal
    places = [example.again.line for example in found.same_prompt_examples]
    assert places == sorted(places)
    assert len(places) == min(3, equal)


def test_reasons_are_one_where_only_numbers_differ_and_never_grow_without_end():
    reasons = Reasons()
    for n in range(100):
        reasons.add(Place("f", n + 1), f"message {n}: no role")
        reasons.add(Place("f", n + 1), "x" * n)
    assert reasons.total == 200
    first = reasons.ordered()[0]
    assert (first.text, first.count, first.first.line) == ("message 0: no role", 100, 1)
    assert len(reasons.ordered()) <= 51


def test_what_the_output_is_known_from():
    survey = Survey(rows=10, answers=12, max_tokens=120)
    measured = Measured("old", ["m"], 4, 7.5)
    given_ = output_of(survey, 2, expected=3, measured=measured)
    assert (given_.basis, given_.tokens, given_.completions) == ("given", 72, 20)
    assert output_of(survey, 1, expected=None, measured=measured).tokens == 90
    assert output_of(survey, 1, expected=None, measured=None).basis == "max_tokens"
    survey.unlimited = 1
    unknown = output_of(survey, 1, expected=None, measured=None)
    assert (unknown.basis, unknown.tokens) == ("unknown", None)
    assert cost_of(unknown, Rates(100)) is None
    cost = cost_of(given_, Rates(0.01, gpus=2, price=5))
    assert (cost.gpu_hours, cost.wall_hours, cost.price) == (2, 1, 10)


USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b" * 50}


def test_what_is_certain_to_be_sent_of_a_conversation():
    empty = {"role": "assistant", "content": ""}
    assert prompts_of([USER]) == [[USER]]
    assert prompts_of([USER, ANSWER, USER]) == [[USER], [USER, empty, USER]]
    assert prompts_of([USER, ANSWER], keep_answers=True) == [[USER, ANSWER]]


@settings(max_examples=60)
@given(st.text(max_size=200))
def test_no_prompt_has_more_tokens_than_its_bytes_allow(model, text):
    check = LengthCheck(str(model), Context(600, "test"), thinking=None)
    messages = [{"role": "user", "content": text or "x"}]
    (size,) = check._loaded().sizes([Row(0, messages)])
    assert size.first <= most_tokens(messages, dumps(messages))
    assert estimate(messages) >= 6


@pytest.mark.parametrize(("tokens", "refused"), [(599, False), (600, True)])
def test_a_prompt_must_leave_room_for_one_token(tokens, refused):
    assert (too_long(tokens, Context(600, "x")) is not None) == refused


def test_rows_in_doubt_are_counted_only_then():
    settings_ = RunSettings(model="nobody/nothing", model_fingerprint="")
    assert length_check(None, settings_) is None
    assert "left to the consumer" in check_note(None, "nobody/nothing")
    check = length_check(4096, settings_)
    assert check.doubt(Row(0, [USER])) == 0
    assert check_note(check, "m") == ""  # its bytes alone say that it fits
    long = Row(1, [{"role": "user", "content": "x" * 5000}], sampling=Sampling())
    assert check.doubt(long) >= 5000
    assert check.refusals([long]) == [None]
    assert "1 rows may be too long; their check is left to the consumer" in check_note(check, "m")
