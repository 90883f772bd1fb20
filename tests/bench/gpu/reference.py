"""What a model says without any serving engine: plain arithmetic on the CPU, in three precisions.

    python -m tests.bench.gpu.reference FILE.gguf

An engine that answers otherwise the second time is wrong, or met two candidates that rounding can
swap: this tells which. Needs torch, transformers, gguf and accelerate.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of Italy?",
    "Name three colours.",
    "Who wrote Hamlet?",
)
SHOWN = 4
TOKENS = 20


def main(file: Path) -> None:
    import torch  # noqa: PLC0415 - not among the tests' packages
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    folder, name = file.parent, file.name
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=name)

    def load() -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)

    models = {
        "float32": load(),
        "weights in bfloat16": load().to(torch.bfloat16).to(torch.float32),
        "all in bfloat16": load().to(torch.bfloat16),
    }
    for question in QUESTIONS:
        print(question)
        turn = [{"role": "user", "content": question}]
        asked = tokenizer.apply_chat_template(
            turn, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        for name, model in models.items():
            with torch.no_grad():
                likely = torch.log_softmax(model(asked).logits[0, -1].float(), -1).topk(SHOWN)
                said = model.generate(asked, max_new_tokens=TOKENS, do_sample=False)
            first = ", ".join(
                f"{tokenizer.decode([int(token)])!r} {float(value):.3f}"
                for value, token in zip(likely.values, likely.indices, strict=True)
            )
            answer = tokenizer.decode(said[0, asked.shape[1] :], skip_special_tokens=True)
            print(f"  {name:20} {first:55} {answer!r}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
