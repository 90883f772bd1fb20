"""The words about a finished run: its README on storage, and the lines that open it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.parts.opening import datasets_line, duckdb_line

if TYPE_CHECKING:
    from consumer.sink.summary import Summary


def closing_lines(summary: Summary, url: str) -> list[str]:
    """Return what is printed when a run is finished: where it is, and how to open it."""
    glob = f"{url}/data/*.{summary.suffix}"
    counts = f"{summary.committed:,} completions, {summary.dead:,} dead-lettered"
    if not summary.committed:  # no file is there to open
        return [
            f"{summary.run}: {counts}: {url}/failed.jsonl",
            f"  Reasons   gen-producer failed {summary.run}",
            f"  Report    gen-producer report {summary.run}",
        ]
    return [
        f"{summary.run}: {counts}: {url}/data/",
        f"  DuckDB    {duckdb_line(glob, summary.suffix)}",
        f"  Python    {datasets_line(glob, summary.suffix)}",
        f"  Proof     gen-producer verify {summary.run}",
        f"  Report    gen-producer report {summary.run}",
    ]


def readme(summary: Summary, url: str) -> str:
    """Return the dataset card of a finished run."""
    glob = f"data/*.{summary.suffix}"
    return _README.format(
        glob=glob,
        run=summary.run,
        committed=summary.committed,
        items=summary.items,
        rows=summary.rows,
        samples=summary.samples,
        models=", ".join(summary.models) or "no model",
        engines=", ".join(summary.engines) or "no engine",
        tables=_table("verdict", summary.verdicts)
        + _table("dead-lettered, see failed.jsonl", summary.failures),
        prompt_tokens=summary.prompt_tokens,
        completion_tokens=summary.completion_tokens,
        seeds=_EQUAL if summary.reproducible else _UNEQUAL,
        url=url,
        sql=duckdb_line(glob, summary.suffix),
        python=datasets_line(glob, summary.suffix),
    )


_README = """\
---
configs:
- config_name: default
  data_files: {glob}
tags:
- synthetic
---

# {run}

{committed} completions of {items} asked for ({rows} rows, {samples} each), by {models} on
{engines}.

{tables}Tokens: {prompt_tokens} in, {completion_tokens} out.

{seeds}

## Open it

```sql
-- DuckDB, in a local copy of {url}
{sql}
```

```python
{python}
```

`messages` is what the model was sent; `input_ids` and `output_ids` are exactly the tokens it saw
and said. Take `verdict = 'ok'` for whole answers; other verdicts are kept because the run's
settings say so. `manifest.json` lists the parts with their checksums, and
`gen-producer verify {run}` proves that nothing is missing or there twice.
"""


_EQUAL = """\
Every engine promised equal tokens for an equal `seed` (`--reproducible`): the same run on the same
engine, release and kind of card gives them again."""
_UNEQUAL = """\
Each completion has its `seed`, distinct among samples, but equal tokens are not promised for it:
engines compute a request otherwise in other company. A run loaded with `--reproducible` has that
promise, at about half the speed."""


def _table(title: str, counts: dict[str, int]) -> str:
    if not counts:
        return ""
    rows = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    lines = [
        f"| {title} | items |",
        "|---|---:|",
        *(f"| {name} | {count} |" for name, count in rows),
    ]
    return "\n".join(lines) + "\n\n"
