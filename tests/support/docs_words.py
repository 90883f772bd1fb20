"""Words of the docs that stand nowhere else: one entry a setting, a variable, a stored field.

A test fails where something has no entry, or an entry names nothing.
"""

from __future__ import annotations

# Which programs read a setting; gen-local sets the places itself, and its services read the rest.
READERS: dict[str, tuple[str, ...]] = {
    "redis_url": ("producer", "consumer", "sink"),
    "store": ("producer", "consumer", "sink"),
    "s3_endpoint": ("producer", "consumer", "sink"),
    "s3_access_key": ("producer", "consumer", "sink"),
    "s3_secret_key": ("producer", "consumer", "sink"),
    "s3_session_token": ("producer", "consumer", "sink"),
    "s3_region": ("producer", "consumer", "sink"),
    "state_dir": ("consumer", "sink"),
    "wait_seconds": ("producer", "consumer", "sink"),
    "model": ("producer", "consumer"),
    "engine": ("consumer",),
    "profile": ("consumer",),
    "gpus": ("consumer",),
    "lease_seconds": ("producer", "consumer", "sink"),
    "renew_seconds": ("consumer",),
    "max_deliveries": ("producer", "consumer", "sink"),
    "retry_base_seconds": ("producer", "consumer", "sink"),
    "retry_cap_seconds": ("producer", "consumer", "sink"),
    "stream_entries": ("producer", "consumer", "sink"),
    "stream_bytes": ("producer", "consumer", "sink"),
    "result_ttl_seconds": ("producer", "consumer", "sink"),
    "drain_seconds": ("consumer",),
    "engine_key": ("consumer",),
    "start_seconds": ("consumer",),
    "honesty": ("consumer",),
    "metrics_port": ("producer", "consumer", "sink"),
    "metrics_host": ("producer", "consumer", "sink"),
    "sink_rows": ("sink",),
    "sink_bytes": ("sink",),
    "sink_seconds": ("sink",),
    "sink_format": ("sink",),
    "max_row_bytes": ("producer",),
    "log_level": ("producer", "consumer", "sink"),
    "log_format": ("producer", "consumer", "sink"),
}

# Of settings that have no description.
MEANINGS: dict[str, str] = {
    "s3_access_key": "Access key of the store.",
    "s3_secret_key": "Secret key of the store.",
    "s3_session_token": "Session token, where the keys are temporary.",
    "s3_region": "Region that requests are signed for.",
    "engine": "What generates.",
    "sink_format": "Format of the parts of new runs.",
    "log_level": "Least important messages that are logged.",
    "log_format": "`auto`: lines for people on a terminal, JSON elsewhere.",
}

VARIABLES: dict[str, str] = {
    "GENQ_CONFIG": "Another settings file than `genq.toml` in the working folder.",
    "GENQ_DEBUG": "Any value: an error comes with its traceback.",
    "GENQ_ENGINE_API_KEY": "Set by a consumer for the engine that it starts; not for you.",
    "GENQ_ENGINE_TEXT_ONLY": "Set by a consumer for the engine that it starts; not for you.",
    "GENQ_FAILPOINT": "For tests: the step at which a process kills itself.",
    "GENQ_STACK": "Set by `gen-local` for its processes, to find them again; not for you.",
}

# The columns of a part.
COLUMNS: dict[str, str] = {
    "k": "The item: `row * samples + sample`. Unique in a run.",
    "row": "The row of the data set, from 0.",
    "sample": "Which completion of the row, from 0.",
    "row_id": "What the data set calls the row (`id`, `custom_id`); unique or not.",
    "messages": "What the model was sent: list of `role`, `content`, `raw`. `raw` is empty for a"
    " plain message, else the whole message as JSON (tool calls, parts, names). In a conversation"
    " the turns that were generated before are among them.",
    "content": "The answer, without the thought.",
    "reasoning_content": "The thought before the answer, where there is one.",
    "input_ids": "Token ids that the model saw before its last turn.",
    "output_ids": "Token ids that it said in its last turn, thought and marks included.",
    "finish_reason": "`stop`, or `length` where it was cut off at its limit.",
    "verdict": "`ok`, or the class of a fault that the run keeps; see"
    " [classes](operations.md#classes-of-failures).",
    "usage": "Token counts of the last turn; see below.",
    "seed": "The seed of the request: distinct among samples, the same at a rerun.",
    "sampling": "JSON of the sampling settings that were in force.",
    "model": "The model, as the run names it.",
    "engine": "The engine and its release.",
    "attempt": "Which try it was; 1 is the first.",
    "worker": "The consumer that made it.",
    "started": "When the request began: UTC, ISO 8601.",
    "seconds": "From the request's start to its end.",
    "metadata": "JSON of what else the row held.",
    "version": "Version of this schema.",
    "turns": "JSON list of the turns generated before the last one, in order; `[]` for most rows."
    " The fields of a turn are below.",
    "genq_version": "The release of the sink that wrote it.",
}

USAGE: dict[str, str] = {
    "prompt_tokens": "Tokens of the prompt.",
    "completion_tokens": "Tokens of the answer, thought included.",
    "cached_tokens": "Of the prompt, those that the engine had in its cache.",
    "reasoning_tokens": "Of the completion, those of the thought, its marks included.",
}

TURN: dict[str, str] = {
    "content": "The answer of this turn.",
    "reasoning_content": "The thought before it, or null.",
    "input_ids": "What the model saw before this turn.",
    "output_ids": "What it said in this turn.",
    "finish_reason": "`stop` or `length`.",
    "verdict": "The class of this turn.",
    "usage": "As above, of this turn.",
    "seed": "The seed of this turn's request.",
    "attempt": "Which try it was.",
}

# The objects of a run, by the names that `common.objectstore.RunPaths` has for them.
OBJECTS: dict[str, str] = {
    "run_json": "settings, fingerprint, shards; one conditional PUT, never changed",
    "prompts": "the rows in canonical form, 1,000 a shard, JSON lines; immutable",
    "child": "that a child run of this name exists",
    "accepted": "what the canary does not hold the run for any more",
    "cancelled": "whether somebody has cancelled the run, and nobody loaded it again since",
    "engine": "what the run's first engine answered to the honesty check, which it was, and which"
    " of its paths were exercised; one conditional PUT by the first consumer, never changed",
    "part": "completions; one PUT is one commit; nothing else lies in `data/`",
    "index": "which items a part holds; a cache, made again from the part where it is missing",
    "failed": "the dead letters, one JSON object a line; written at the end",
    "manifest": "counts, settings, parts with their checksums; written at the end",
    "readme": "a data set card with the lines that open the results; written at the end",
    "success": "that every item is committed or dead-lettered; written last",
}
FORMAT_OBJECT = (
    "the format of all parts, `parquet` or `jsonl.zst`, and whose they are: run, fingerprint of the"
    " rows and a digest of the settings; one conditional PUT by the first sink"
)

RUN: dict[str, str] = {
    "run": "The name.",
    "settings": "See below.",
    "fingerprint": "SHA-256 over the shards' digests: other rows give another one.",
    "rows": "Rows of the data set.",
    "shard_rows": "Rows in each shard but the last.",
    "shards": "List of `name`, `first_row`, `rows`, `sha256` (of the uncompressed lines).",
    "created": "When it was loaded: UTC, ISO 8601.",
    "source": "The data set as it was named.",
    "genq_version": "The release that loaded it.",
    "version": "Version of this object.",
    "parent": "Of a child run: the run whose items it redoes; else empty.",
    "parent_fingerprint": "The parent's fingerprint.",
    "parent_reason": "The class of the completions that are redone.",
    "parent_items": "Which items of the parent: a bitmap, zstd, base64.",
}

RUN_SETTINGS: dict[str, str] = {
    "model": "The model, as the user gave it.",
    "model_fingerprint": "Of tokenizer and template; empty where the producer could not see them.",
    "samples": "Completions of each row.",
    "sampling": "`max_tokens`, `temperature`, `top_p` and so on; null is the engine's own.",
    "seed": "What the items' seeds are made from.",
    "thinking": "`--thinking` or `--no-thinking`; null: as the template does.",
    "max_attempts": "Tries that an item has.",
    "policies": "For each class of failure: `keep`, `retry` or `dead`.",
    "request_seconds": "Longest that a request may take.",
    "stall_seconds": "Longest that an engine may give no token.",
    "retry_max_tokens": "The limit of tries after the first.",
    "keep_answers": "Nothing is generated, the rows' own answers are tokenized.",
    "reproducible": "Only engines that give equal tokens for equal seeds may serve it.",
    "canary_rows": "How many of the first completions are watched.",
    "canary_faults": "The share of bad ones that holds the run.",
    "canary_truncated": "The share of those cut off that holds it.",
}

INDEX: dict[str, str] = {
    "part": "The part's number.",
    "suffix": "`parquet` or `jsonl.zst`.",
    "token": "Of the writer, after a digest of run, rows and settings; the index counts only if the"
    " part's metadata has the same.",
    "rows": "Completions in it.",
    "bytes": "Its size.",
    "sha256": "Of its bytes.",
    "md5": "Of its bytes: the ETag, where a store makes it from the body alone.",
    "items": "The items, in the part's order.",
    "verdicts": "How many completions of each verdict.",
    "engines": "The engines that made them.",
    "models": "Their models.",
    "prompt_tokens": "Sum of the prompts' tokens.",
    "completion_tokens": "Sum of the completions' tokens.",
    "version": "Version of this object.",
}

FAILED: dict[str, str] = {
    "k": "The item.",
    "row": "The row, from 0.",
    "sample": "Which completion of the row.",
    "row_id": "What the data set calls the row.",
    "verdict": "Why it is dead: its [class](operations.md#classes-of-failures).",
    "text": "What happened at the last try, cut to 2 kB.",
    "worker": "Where that was.",
    "at": "When: UTC, ISO 8601.",
    "messages": "The row's messages, as loaded.",
    "metadata": "What else the row held.",
}

MANIFEST: dict[str, str] = {
    "version": "Version of this object.",
    "run": "The name.",
    "finished": "When: UTC, ISO 8601.",
    "closing": "Which closing of the run it tells of; the same in all objects of the end.",
    "genq_version": "The sink's release.",
    "input": "The data set:",
    "input.source": "as it was named,",
    "input.fingerprint": "its fingerprint,",
    "input.rows": "and its rows.",
    "settings": "As in run.json.",
    "counts": "See below.",
    "waste": "What storage alone cannot tell; null where Redis did not say:",
    "waste.tokens": "tokens that were generated and thrown away,",
    "waste.failed_tries": "and tries that failed, by class.",
    "parts": "List of `part`, `key`, `rows`, `bytes`, `sha256`, `etag`.",
}

COUNTS: dict[str, str] = {
    "run": "The name.",
    "suffix": "Format of the parts.",
    "rows": "Rows of the data set.",
    "samples": "Completions of each.",
    "items": "Their product.",
    "committed": "Completions in `data/`.",
    "dead": "Lines of failed.jsonl; `committed + dead = items`.",
    "verdicts": "Completions by verdict.",
    "failures": "Dead letters by class.",
    "engines": "Engines and releases that made them.",
    "models": "Models that did.",
    "prompt_tokens": "Sum of the prompts' tokens.",
    "completion_tokens": "Sum of the completions' tokens.",
    "reproducible": "Whether equal tokens were promised for equal seeds.",
}

SUCCESS: dict[str, str] = {
    "items": "Items of the run.",
    "committed": "Completions in `data/`.",
    "dead": "Lines of failed.jsonl.",
    "closing": "Which closing of the run it tells of.",
}
