"""The messages that test_messages.py provokes, word for word: what, why, and the way out."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.errors import (
    ConflictError,
    EngineError,
    GenqError,
    InputError,
    QueueAwayError,
    QueueError,
    RunClosedError,
    StoreAwayError,
    StoreError,
    UsageError,
)

MODEL = "--model m"
LOADED = f"gen-producer load rows.jsonl {MODEL} --run one"


@dataclass(frozen=True)
class Case:
    name: str
    line: str
    kind: type[GenqError]
    text: str
    before: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    policy: str = ""  # what Redis evicts meanwhile
    then: str = ""  # the command that the message gives, and that is run


CASES = (
    Case(
        "no model",
        "gen-producer load rows.jsonl",
        UsageError,
        (
            "Error: No model is named.\n"
            "  A run's completions all come from one model.\n"
            "  gen-producer load ... --model NAME    (or: export GENQ_MODEL=NAME)"
        ),
    ),
    Case(
        "no store",
        LOADED,
        UsageError,
        (
            "Error: No object storage is named.\n"
            "  store comes from GENQ_STORE.\n"
            "  For example: export GENQ_STORE=s3://bucket/prefix"
        ),
        env={"GENQ_STORE": ""},
    ),
    Case(
        "store by http",
        LOADED,
        UsageError,
        (
            "Error: 'http://HOST/bucket/pre' is not a place in object storage.\n"
            "  store comes from GENQ_STORE.\n"
            "  Name the bucket and the service apart: export GENQ_STORE=s3://bucket/pre "
            "GENQ_S3_ENDPOINT=http://HOST"
        ),
        env={"GENQ_STORE": "http://127.0.0.1:9000/bucket/pre"},
    ),
    Case(
        "no bucket's name",
        LOADED,
        UsageError,
        (
            "Error: 'b' cannot be the name of a bucket.\n"
            "  store comes from GENQ_STORE. It takes 3 to 63 letters, digits, dots and hyphens.\n"
            "  Correct it: GENQ_STORE"
        ),
        env={"GENQ_STORE": "s3://b/runs"},
    ),
    Case(
        "unknown setting",
        "gen-producer status",
        UsageError,
        (
            "Error: GENQ_STORES is not a setting: did you mean GENQ_STORE?\n"
            "  It is set in the environment, and nothing reads it.\n"
            "  unset GENQ_STORES"
        ),
        env={"GENQ_STORES": "x"},
    ),
    Case(
        "name of a run",
        f"gen-producer load rows.jsonl {MODEL} --run One!",
        UsageError,
        (
            "Error: 'One!' cannot name a run.\n"
            "  A name has 1 to 63 of a-z, 0-9 and '-', and does not begin with '-'.\n"
            "  For example: --run one"
        ),
    ),
    Case(
        "no such run in Redis",
        "gen-producer pause nosuch",
        UsageError,
        (
            "Error: There is no run nosuch in Redis.\n"
            "  It was never loaded there, or Redis lost it.\n"
            "  gen-producer status    lists the runs"
            "    (if Redis lost it: gen-producer load --run nosuch)"
        ),
        then="gen-producer status",
    ),
    Case(
        "nobody to ask",
        "gen-producer cancel one",
        UsageError,
        (
            "Error: Run one is not cancelled: nobody can be asked.\n"
            "  Standard input is no terminal.\n"
            "  Add --yes: gen-producer cancel one --yes"
        ),
        before=(LOADED,),
        then="gen-producer cancel one --yes",
    ),
    Case(
        "no model for an engine",
        "gen-consumer --gpu 0",
        UsageError,
        (
            "Error: No model was named.\n"
            "  Neither --model nor GENQ_MODEL is set.\n"
            "  gen-consumer --gpu 0 --model Qwen/Qwen3.6-27B"
        ),
    ),
    Case(
        "no such file",
        f"gen-producer load nosuch.jsonl {MODEL}",
        InputError,
        ("Error: nosuch.jsonl cannot be read.\n  No such file or directory\n  ls -l ."),
    ),
    Case(
        "a row that is no JSON",
        f"gen-producer load bad.jsonl {MODEL}",
        InputError,
        (
            "Error: bad.jsonl:2: invalid JSON (unexpected end of data).\n"
            "  1 rows before it can be used. Nothing was stored or queued.\n"
            "  Mend it, or pass over what cannot be used: --on-error skip"
        ),
    ),
    Case(
        "an empty data set",
        f"gen-producer load empty.jsonl {MODEL}",
        InputError,
        (
            "Error: The data set holds no row that can be used.\n"
            "  It is empty.\n"
            "  gen-producer plan DATASET    shows what was found in it"
        ),
    ),
    Case(
        "a data set by http",
        f"gen-producer load http://example.org/rows.jsonl {MODEL}",
        InputError,
        (
            "Error: http://example.org/rows.jsonl cannot be read.\n"
            "  Known places: a file, a folder, a glob, -, s3://..., hf://...\n"
            "  curl -L http://example.org/rows.jsonl | gen-producer load - --run NAME"
        ),
    ),
    Case(
        "no such run",
        "gen-producer status nosuch",
        UsageError,
        (
            "Error: There is no run nosuch in Redis or s3://genq-tests/ID.\n"
            "  s3://genq-tests/ID/nosuch/run.json is not there.\n"
            "  gen-producer status    lists the runs"
        ),
        then="gen-producer status",
    ),
    Case(
        "no such run in storage",
        "gen-producer verify nosuch",
        UsageError,
        (
            "Error: There is no run nosuch in s3://genq-tests/ID.\n"
            "  s3://genq-tests/ID/nosuch/run.json is not there.\n"
            "  gen-producer status    lists the runs"
        ),
        then="gen-producer status",
    ),
    Case(
        "Redis is not there",
        "gen-producer status",
        QueueAwayError,
        (
            "Error: Redis at redis://HOST/0 cannot be reached.\n"
            "  The address comes from GENQ_REDIS_URL: Error 111 ...\n"
            "  Start it (redis-server, valkey-server), or set GENQ_REDIS_URL."
        ),
        env={"GENQ_REDIS_URL": "redis://127.0.0.1:1/0"},
    ),
    Case(
        "Redis evicts",
        LOADED,
        QueueError,
        (
            "Error: Redis at redis://HOST/0 would throw prompts away.\n"
            "  maxmemory-policy is allkeys-lru: under memory pressure it deletes keys.\n"
            "  redis-cli CONFIG SET maxmemory-policy noeviction"
        ),
        policy="allkeys-lru",
    ),
    Case(
        "no such bucket",
        "gen-sink --burst",
        StoreError,
        (
            "Error: Cannot write s3://nosuch/x/.genq-probe/ID-a.\n"
            "  http://HOST: NoSuchBucket: The specified bucket does not exist\n"
            "  Correct GENQ_STORE, or create it: aws s3 mb s3://nosuch --region us-east-1"
            " --endpoint-url http://HOST"
        ),
        env={"GENQ_STORE": "s3://nosuch/x"},
    ),
    Case(
        "the store is not there",
        "gen-sink --burst",
        StoreAwayError,
        (
            "Error: Cannot write s3://genq-tests/ID/.genq-probe/ID-a.\n"
            "  http://HOST: Failed to establish a new connection: [Errno 111] Connection "
            "refused\n"
            "  Check that http://HOST answers (it comes from GENQ_S3_ENDPOINT)."
        ),
        env={"GENQ_S3_ENDPOINT": "http://127.0.0.1:1"},
    ),
    Case(
        "a wrong key",
        "gen-sink --burst",
        StoreError,
        (
            "Error: Cannot write s3://genq-tests/ID/.genq-probe/ID-a.\n"
            "  http://HOST: SignatureDoesNotMatch: The request signature we calculated does "
            "not match the signature you provided. Check your key and signing method.\n"
            "  Check GENQ_S3_SECRET_KEY."
        ),
        env={"GENQ_S3_SECRET_KEY": "wrong"},
    ),
    Case(
        "no such model file",
        "gen-consumer --engine llamacpp --model /nosuch.gguf",
        EngineError,
        (
            "Error: /nosuch.gguf is not there.\n"
            "  llama.cpp serves one GGUF file of this machine.\n"
            "  --model /path/to/model.gguf, or --model smollm2 for the small one."
        ),
    ),
    Case(
        "a flag that the consumer sets itself",
        "gen-consumer --engine llamacpp --model small.gguf -- --port 1",
        UsageError,
        (
            "Error: --port cannot be passed to the engine.\n"
            "  The consumer sets model, address and key itself.\n"
            "  Leave it out. A model: gen-consumer --model NAME; your own server: --url URL"
        ),
    ),
    Case(
        "other rows",
        f"gen-producer load other.jsonl {MODEL} --run one",
        ConflictError,
        (
            "Error: Run one was loaded with other rows.\n"
            "  Row 2 is another (other.jsonl:2): messages[0].content (1 characters -> 1 "
            "characters)\n"
            "  Loaded DATE from rows.jsonl.\n"
            "  Load it under a new name: gen-producer load other.jsonl --run one-2 --model m"
        ),
        before=(LOADED,),
        then="gen-producer load other.jsonl --run one-2 --model m",
    ),
    Case(
        "other settings",
        "gen-producer load rows.jsonl --model m2 --run one",
        ConflictError,
        (
            "Error: Run one was loaded with other settings.\n"
            "  model: was m, now m2\n"
            "  Loaded DATE from rows.jsonl.\n"
            "  Load it under a new name: gen-producer load rows.jsonl --run one-2 --model m2"
        ),
        before=(LOADED,),
        then="gen-producer load rows.jsonl --run one-2 --model m2",
    ),
    Case(
        "a run that is over",
        "gen-producer pause one",
        RunClosedError,
        (
            "Error: Run one cannot be paused: it is cancelled.\n"
            "  What was queued was dropped; what was committed is there.\n"
            "  gen-producer load --run one    loads the rest again"
        ),
        before=(LOADED, "gen-producer cancel one --yes"),
    ),
)
