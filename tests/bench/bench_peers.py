"""genq beside what people use today, on the same engines: `make bench-peers`.

    python -m tests.bench.bench_peers [--rows 400] [--only genq,celery] [--record FILE]

The same short requests, as many in flight, two stand-in engines, a real Valkey and a real S3
server. The tools come from requirements/bench.txt, in a venv of their own. Each is run once
through, and once with a kill -9 of all its processes when half of the answers are there.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson
import redis

from tests.bench.peers.record import page, summary
from tests.bench.peers.tools import Place, tools
from tests.bench.peers.trial import EngineLogs, clean, killed
from tests.support import servers
from tests.support.fake_engine import free_port
from tests.support.tiny_tokenizer import build_model_folder

ROOT = Path(__file__).parents[2]
VENV = ROOT / "build" / "bench-venv"
ENGINES = 2


@contextlib.contextmanager
def engines(folder, model, options):
    """Two stand-ins of a trial's own; yields their URLs and what they note."""
    with contextlib.ExitStack() as after:
        urls, paths = [], []
        err = after.enter_context((folder / "engines.err").open("ab"))
        for number in range(ENGINES):
            path, port = folder / f"engine{number}.log", free_port()
            path.touch()
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.bench.peers.engine",
                    path,
                    "--port",
                    str(port),
                    "--model",
                    model,
                    "--answer-tokens",
                    str(options.answer_tokens),
                    "--token-seconds",
                    str(options.token_seconds),
                    "--max-running-requests",
                    str(options.in_flight // ENGINES),
                ],
                stdout=subprocess.PIPE,
                stderr=err,
                cwd=ROOT,
            )
            after.callback(process.wait)
            after.callback(process.kill)
            while b"ready to roll" not in (line := process.stdout.readline()):
                assert line, "an engine did not start"
            urls.append(f"http://127.0.0.1:{port}")
            paths.append(path)
        logs = EngineLogs(paths)
        after.callback(logs.close)
        yield tuple(urls), logs


def trial(kind, name, folder, options, its):
    """Run one trial of one tool on fresh engines, an empty Redis and a prefix of its own."""
    redis_server, s3_server = its
    place_folder = folder / f"{name.replace(' ', '-').replace(',', '')}-{kind.__name__}"
    place_folder.mkdir()
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    model = build_model_folder(folder / "tiny-model")
    with engines(place_folder, str(model), options) as (urls, logs):
        place = Place(
            folder=place_folder,
            engines=urls,
            redis_url=redis_server.url,
            store=s3_server.settings(prefix=place_folder.name),
            rows=options.rows,
            in_flight=options.in_flight,
            venv=options.venv,
        )
        lines = (orjson.dumps({"prompt": f"question {row}"}) for row in range(options.rows))
        place.input.write_bytes(b"\n".join(lines) + b"\n")
        (tool,) = (one for one in tools(place) if one.name == name)
        return tool, kind(tool, place, logs, patience_seconds=options.patience)


@contextlib.contextmanager
def _folder(*, keep):
    folder = tempfile.mkdtemp(prefix="genq-peers-")
    try:
        yield folder
    finally:
        if keep:
            print(f"logs and results: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def bench(options):
    results = []
    with (
        _folder(keep=options.keep) as folder,
        servers.redis_server() as redis_server,
        servers.s3_server() as s3_server,
    ):
        nowhere = Place(Path(folder), (), "", {}, 0, 0, options.venv)
        for name in [one.name for one in tools(nowhere)]:
            if options.only and not any(word in name for word in options.only.split(",")):
                continue
            given = (name, Path(folder), options, (redis_server, s3_server))
            tool, through = trial(clean, *given)
            _, after_kill = trial(killed, *given)
            results.append((tool, through, after_kill))
            print(summary(results[-1]), flush=True)
    return results


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--in-flight", type=int, default=32, help="in both engines together")
    parser.add_argument("--answer-tokens", type=int, default=64)
    parser.add_argument("--token-seconds", type=float, default=0.008)
    parser.add_argument("--patience", type=float, default=330.0, help="seconds without a result")
    parser.add_argument("--only", default="", help="tools whose names hold one of these words")
    parser.add_argument("--venv", type=Path, default=VENV)
    parser.add_argument("--keep", action="store_true", help="keep logs and results")
    parser.add_argument("--record", type=Path, help="write the page there")
    return parser.parse_args()


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all that was started is ended
    results = bench(options)
    if options.record:
        command = shlex.join(["python", "-m", "tests.bench.bench_peers", *sys.argv[1:]])
        options.record.write_text(page(results, options, command), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
