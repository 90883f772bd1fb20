"""Speculators' pre-tokenized rows: ``{"id": str, "input_ids": [int], "loss_mask": [0 or 1]}``.

Facts, from speculators 0.9.0 (`speculators/data_generation/preprocessing.py`,
`cli/prepare_data.py`, `cli/regenerate_responses.py`):

- Both lists are of one length. ``loss_mask`` is 1 on tokens that the model generated, and 0 on all
  others. A row without a 1 in it is dropped.
- ``speculators prepare-data`` takes such rows as they are, and renders nothing; other columns are
  dropped. What is longer than its ``--seq-length`` is cut there.
- A file's name must end in ``.jsonl`` or ``.json``; of a folder, all such files are read.

SpecForge takes the same rows (`specforge/data/prompt_builder.py`). The ids are those that the
engine was sent and sent back: no template and no tokenizer is between generation and training. Of a
conversation with several generated turns each is masked in; see :mod:`common.examples` for where
one row ends and the next begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common.examples import examples_of
from producer.export.rows import UnfitError, name_of

if TYPE_CHECKING:
    from common.records import Completion
    from producer.export.rows import Options


def rows(completion: Completion, options: Options) -> list[dict[str, Any]]:
    """Return the rows of one completion.

    Raises:
        UnfitError: it has no token that the model generated.
    """
    made = examples_of(completion.examples)
    if not made:
        raise UnfitError("it has no output ids")
    return [
        {
            "id": name_of(completion, options, generation if len(made) > 1 else None),
            "input_ids": example.input_ids,
            "loss_mask": example.loss_mask,
        }
        for generation, example in enumerate(made)
    ]
