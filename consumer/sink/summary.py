"""A finished run in figures, and the parts that they are counted from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from common.objectstore import RunPaths
    from common.parts.index import FoundPart
    from common.records import RunManifest


@dataclass(frozen=True, slots=True)
class Summary:
    """A finished run in figures."""

    run: str
    suffix: str
    rows: int
    samples: int
    items: int
    committed: int
    dead: int
    verdicts: dict[str, int]
    failures: dict[str, int]  # dead letters by class
    engines: list[str]
    models: list[str]
    prompt_tokens: int
    completion_tokens: int
    reproducible: bool = False  # engines promised equal tokens for equal seeds


class Survey:
    """What the parts hold together; of each only a line of the manifest is kept."""

    def __init__(self, paths: RunPaths) -> None:
        self.listed: list[dict[str, Any]] = []
        self._paths = paths
        self._verdicts: Counter[str] = Counter()
        self._engines: set[str] = set()
        self._models: set[str] = set()
        self._prompt_tokens = self._completion_tokens = 0

    def take(self, part: FoundPart) -> None:
        """Take one more part."""
        index = part.index
        self.listed.append(
            {
                "part": index.part,
                "key": self._paths.part(index.part, index.suffix).removeprefix(
                    f"{self._paths.run}/"
                ),
                "rows": index.rows,
                "bytes": index.bytes,
                "sha256": index.sha256,
                "etag": part.stat.etag,
            }
        )
        self._verdicts.update(index.verdicts)
        self._engines.update(index.engines)
        self._models.update(index.models)
        self._prompt_tokens += index.prompt_tokens
        self._completion_tokens += index.completion_tokens

    def summary(
        self, manifest: RunManifest, *, suffix: str, committed: int, dead: Counter[str]
    ) -> Summary:
        """Return the run in figures; ``dead`` are its dead letters by class."""
        return Summary(
            run=manifest.run,
            suffix=suffix,
            rows=manifest.rows,
            samples=manifest.settings.samples,
            items=manifest.items,
            committed=committed,
            dead=dead.total(),
            verdicts=dict(self._verdicts),
            failures=dict(dead),
            engines=sorted(self._engines),
            models=sorted(self._models),
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            reproducible=manifest.settings.reproducible,
        )
