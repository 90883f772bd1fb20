"""The whole pipeline on a real GPU, and beside the engine alone.

    python -m tests.bench.bench_gpu --model M --gpus 0 --out DIR [--stage NAME ...] [-- FLAGS]

FLAGS go to the engine. It brings its own Redis and S3 server; sglang must be installed. Stages:

live    a bounded round of tuning on a run's real items, which is then finished and verified
whole   a run from `load` to `verify`
kill    SIGKILL of the engine's scheduler under load
pair    A B A B on one server: A is SGLang's own serving benchmark, B a loaded run; the same
        prompts and limits, and as many requests in flight as the consumer's window allows
cards   a consumer on each of two cards, then one of them alone; in turn, as often as --rounds says

Stages that must not disturb those of another such process wait for files: --gate DIR lets each
stage begin once DIR/NAME is there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.gpu.counter import Counter, steady_rate
from tests.bench.gpu.prompts import renderer, write_prompts
from tests.bench.gpu.town import Consumer, Town, town

STAGES = ("live", "whole", "kill", "pair", "cards")
KEEP = ("truncated", "looping", "empty", "thought_only")


@dataclass
class Bench:
    """What the stages share."""

    options: argparse.Namespace
    place: Town
    consumers: list[Consumer] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    _runs: int = 0

    def note(self, name: str, value: Any) -> None:
        """Keep a figure, also should a later stage fail."""
        self.figures[name] = value
        print(name, json.dumps(value), flush=True)
        text = json.dumps(self.figures, indent=1)
        (self.options.out / "figures.json").write_text(text + "\n")

    def staffed(self, number: int = 1) -> list[Consumer]:
        """Return so many consumers, each on its card, all ready; those that run already stay."""
        fresh = [
            Consumer(self.place, self.options.out, gpu, self.options.flags)
            for gpu in self.options.gpus[len(self.consumers) : number]
        ]
        self.consumers += fresh
        for consumer in fresh:
            self.note(f"ready_seconds_gpu{consumer.gpu}", round(consumer.wait_ready(), 1))
        return self.consumers[:number]

    def dismiss(self) -> None:
        """End the newest consumer."""
        self.note(f"exit_code_gpu{self.consumers[-1].gpu}", self.consumers.pop().end())

    def begins(self, stage: str) -> bool:
        """Whether a stage was asked for; waits until its gate is open."""
        if stage not in self.options.stage:
            return False
        print("stage", stage, flush=True)
        while self.options.gate and not (self.options.gate / stage).exists():
            time.sleep(0.2)  # poll: for a file
        return True

    def load(self, rows: Path) -> str:
        """Load a run of these rows that keeps whatever is answered; return its name."""
        self._runs += 1
        run = f"gpu-{self._runs}"
        keep = [word for name in KEEP for word in ("--policy", f"{name}=keep")]
        limits = ["--max-tokens", str(self.options.max_tokens), "--canary-rows", "0"]
        heat = ["--temperature", str(self.options.temperature)]
        self.place.run("gen-producer", "load", str(rows), "--run", run, *limits, *heat, *keep)
        return run

    def drain(self, run: str) -> None:
        """Commit the run to its end."""
        format_ = ["--format", "jsonl.zst", "--rows", "2000", "--seconds", "5"]
        self.place.run("gen-sink", "--run", run, "--burst", *format_)


def main() -> None:
    options = parse()
    rows, words, render = options.rows, options.words, renderer(options.model)
    with tempfile.TemporaryDirectory(prefix="genq-gpu-") as folder:
        settings = {"model": options.model, "honesty": "true" if options.honest else "false"}
        with town(Path(folder), options.out, settings) as place:
            bench = Bench(options, place)
            try:
                if bench.begins("live"):
                    live(bench, write_prompts(place.folder, options.live_rows, words, 5, render)[0])
                if bench.begins("whole"):
                    whole(bench, *write_prompts(place.folder, options.whole_rows, words, 1, render))
                if bench.begins("kill"):
                    kill(bench, write_prompts(place.folder, rows, words, 3, render)[0])
                if bench.begins("pair"):
                    pair(bench, *write_prompts(place.folder, rows, words, 2, render))
                if bench.begins("cards"):
                    made = (write_prompts(place.folder, n * rows, words, 4, render) for n in (1, 2))
                    cards(bench, *(ours for ours, _theirs in made))
            finally:
                while bench.consumers:
                    bench.dismiss()


def live(bench: Bench, rows: Path) -> None:
    """Tune on a run while a sink commits it; then finish the run."""
    run, gpu, minutes = bench.load(rows), bench.options.gpus[0], bench.options.live_minutes
    words = ["--gpu", str(gpu), "--live", run, "--minutes", str(minutes)]
    with ThreadPoolExecutor(1) as beside:
        drained = beside.submit(bench.drain, run)
        try:
            bench.place.run("gen-consumer", "tune", *words, "--", *bench.options.flags)
            bench.place.run("gen-producer", "status", run)
        finally:
            bench.staffed()  # the run ends, also where the round did not: the sink waits for it
        drained.result()
    bench.place.run("gen-producer", "verify", run)


def whole(bench: Bench, rows: Path, _theirs: Path) -> None:
    """A run from `load` to `verify`."""
    bench.staffed()
    began = time.monotonic()
    run = bench.load(rows)
    bench.drain(run)
    bench.place.run("gen-producer", "verify", run)
    bench.place.run("gen-producer", "status", run)
    bench.note("whole_seconds", round(time.monotonic() - began, 1))
    bench.note("whole_rows", bench.options.whole_rows)


def pair(bench: Bench, rows: Path, theirs: Path) -> None:
    """A: SGLang's benchmark. B: a loaded run. Twice each, on the same server."""
    (consumer,) = bench.staffed()
    found: dict[str, list[dict[str, float]]] = {"alone": [], "pipeline": []}
    for turn in range(2 * bench.options.rounds):
        name = ("alone", "pipeline")[turn % 2]
        flush(consumer)
        counter = Counter(consumer.door)
        counter.wait_first()
        own = alone(bench, theirs, turn) if name == "alone" else _pipeline(bench, rows)
        moves = counter.stop()[0]
        figures = {
            "tokens": moves[-1][1] - moves[0][1],
            "steady_tokens_per_second": round(steady_rate([moves]), 1),
        }
        found[name].append({**figures, **own})
        bench.note(f"pair_{turn}_{name}", found[name][-1])
    rates = {
        name: [one["steady_tokens_per_second"] for one in some] for name, some in found.items()
    }
    bench.note("pair_ratio", round(sum(rates["pipeline"]) / sum(rates["alone"]), 4))


def _pipeline(bench: Bench, rows: Path) -> dict[str, float]:
    run = bench.load(rows)
    bench.drain(run)
    return {}


def alone(bench: Bench, theirs: Path, turn: int) -> dict[str, float]:
    """SGLang's own serving benchmark against the consumer's server, while nothing is loaded."""
    options, door = bench.options, bench.consumers[0].door()
    assert door is not None
    result = options.out / f"bench-{turn}.jsonl"
    command = [sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang"]
    command += ["--base-url", door.url, "--model", options.model, "--tokenizer", options.model]
    command += ["--dataset-name", "custom", "--dataset-path", str(theirs), "--num-prompts"]
    command += [str(options.rows), "--sharegpt-output-len", str(options.max_tokens)]
    command += ["--max-concurrency", str(options.window)]
    command += ["--temperature", str(options.temperature), "--disable-ignore-eos"]
    command += ["--disable-stream", "--disable-tqdm", "--output-file", str(result)]
    command += ["--warmup-requests", "0"]  # its tokens would be counted, and a pause after them
    done = subprocess.run(
        command,
        env={**os.environ, "OPENAI_API_KEY": door.key},
        capture_output=True,
        text=True,
        timeout=500.0,
        check=False,
    )
    bench.place.say(f"$ python {' '.join(command[1:])}\n{done.stdout}\n{done.stderr[-1500:]}")
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(result.read_text().splitlines()[-1])
    result.unlink()  # its lists are long; what counts of it is kept
    keep = ("completed", "duration", "total_input_tokens", "total_output_tokens")
    return {key: said[key] for key in (*keep, "output_throughput", "concurrency") if key in said}


def flush(consumer: Consumer) -> None:
    """Empty the prefix cache, so that no turn profits from the one before."""
    door = consumer.door()
    assert door is not None
    door.get("/flush_cache", method="POST")


def kill(bench: Bench, rows: Path) -> None:
    """SIGKILL of the scheduler under load; seconds to the first new token; nothing is lost."""
    (consumer,) = bench.staffed()
    counter = Counter(consumer.door)
    counter.wait_first()
    run = bench.load(rows)
    moves = counter.moves[0]
    while moves[-1][1] - moves[0][1] < 0.2 * bench.options.rows * 20:
        time.sleep(0.1)  # poll: until it is in full swing
    before, scheduler, killed = moves[-1][1], consumer.scheduler(), time.monotonic()
    name = scheduler.name()
    scheduler.kill()
    bench.place.say(f"$ kill -9 {scheduler.pid}    # {name}\n")
    consumer.wait_ready(incarnation=2)  # its own check of honesty decodes before that
    ready = time.monotonic()
    bench.drain(run)
    seen = counter.stop()[0]
    fresh = [(when, tokens) for when, tokens in seen if when > killed and tokens < before]
    checked = max((tokens for when, tokens in fresh if when <= ready), default=0.0)
    first = min(when for when, tokens in fresh if when > ready and tokens > checked)
    bench.note("kill_seconds_to_ready", round(ready - killed, 1))
    bench.note("kill_seconds_to_the_first_new_token", round(first - killed, 1))
    bench.place.run("gen-producer", "verify", run)
    bench.place.run("gen-producer", "status", run)


def cards(bench: Bench, rows: Path, twice: Path) -> None:
    """Both cards at once, then one of them alone; as many times as there are rounds."""
    both, alone = [], []
    for turn in range(bench.options.rounds):
        bench.staffed(2)
        if bench.options.warm:
            _loaded(bench, twice)  # the windows grow, kernels are met
        both.append(_loaded(bench, twice))
        bench.note(f"cards_{turn}_two_tokens_per_second", round(both[-1], 1))
        bench.dismiss()
        alone.append(_loaded(bench, rows))
        bench.note(f"cards_{turn}_one_tokens_per_second", round(alone[-1], 1))
    bench.note("cards_ratio", round(sum(both) / sum(alone), 4))


def _loaded(bench: Bench, rows: Path) -> float:
    for consumer in bench.consumers:
        flush(consumer)
    counter = Counter(*(consumer.door for consumer in bench.consumers))
    counter.wait_first()
    bench.drain(bench.load(rows))
    return steady_rate(counter.stop())


def parse() -> argparse.Namespace:
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="a folder")
    parser.add_argument("--gpus", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stage", nargs="+", choices=STAGES, default=["whole", "pair", "kill"])
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--live-rows", type=int, default=40_000)
    parser.add_argument("--live-minutes", type=float, default=5.0)
    parser.add_argument("--whole-rows", type=int, default=2000)
    parser.add_argument("--words", type=int, default=100, help="of a prompt")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--window", type=int, default=320, help="of the benchmark of SGLang")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--honest", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args(words[:at])
    options.flags = words[at + 1 :]
    return options


if __name__ == "__main__":
    main()
