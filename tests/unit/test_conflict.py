"""What a refused load advises can be pasted: with every flag that was given."""

import shlex

from common.errors import ConflictError
from producer.cli import cli
from producer.load.conflict import whole_hint
from tests.support.producers import load_options

HINT = "Load it under a new name: gen-producer load a b.jsonl --run mine-2"
WORDS = [
    *("--model", "my model", "--samples", "4", "--max-tokens", "9", "--temperature", "0.5"),
    *("--top-p", "0.9", "--top-k", "5", "--seed", "3", "--max-attempts", "2"),
    *("--retry-max-tokens", "99", "--format", "text", "--field", "q", "--limit", "7"),
    *("--split", "s", "--context", "4096", "--canary-rows", "9", "--canary-faults", "0.2"),
    *("--canary-truncated", "0.3"),
    *("--policy", "truncated=retry", "--policy", "empty=dead", "--keep-answers"),
    *("--reproducible", "--no-thinking", "--priority", "2", "--on-error", "skip"),
]


def hint(*words):
    options = load_options("a b.jsonl", *words)
    error = ConflictError("x", fix=HINT)
    whole_hint(error, options["datasets"], options)
    return shlex.split(error.fix.removeprefix("Load it under a new name: "))


def test_the_hint_repeats_what_was_given():
    start = ["gen-producer", "load", "a b.jsonl", "--run", "mine-2"]
    assert hint() == start
    assert hint("--run", "mine", *WORDS) == start + WORDS


def test_no_option_of_load_is_forgotten():
    given = {word for word in WORDS if word.startswith("--")}
    options = {name for one in cli.commands["load"].params for name in one.opts if name[:2] == "--"}
    assert options - given - {"--run", "--dry-run", "--json", "--quiet", "--thinking"} == set()
