"""``data synthesize``: training text that the model writes itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import Field

from multitoken.cli.files import read_bytes
from multitoken.cli.models import ModelFlags
from multitoken.cli.prompts import read_items
from multitoken.cli.show import console, print_json
from multitoken.errors import DataError, OptionError
from multitoken.training.corpus import read_corpus
from multitoken.training.synthesize import Synthesis, synthesize

# Questions that drafters are measured on. Training on them would make every figure worthless.
TEST_SETS = {
    "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14": "the GSM8K test questions",
    "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04": "the Spec-Bench questions",
}


class SynthesizeCommand(ModelFlags):
    """Options of ``data synthesize``."""

    count: int = Field(..., ge=1, description="samples wanted in the file; the same command again adds what is missing")
    out: Path = Field(..., description="the corpus, a JSON Lines file; one that was begun is continued")
    prompts: Path | None = Field(
        None, description="JSON Lines with what to answer (default: the model writes the user's turn too)"
    )
    field: str = Field("prompt", description="key of the text in --prompts")
    prompt_tokens: int = Field(64, ge=1, description="most tokens of a question that the model writes")
    answer_tokens: int = Field(128, ge=2, description="most tokens of an answer")
    prompt_temperature: float = Field(1.0, gt=0, description="temperature of the questions")
    prompt_top_p: float = Field(0.95, gt=0, le=1, description="top-p of the questions")
    answer_temperature: float = Field(0.0, ge=0, description="temperature of the answers (0: greedy)")
    rows: int = Field(32, ge=1, description="sequences in one forward")
    seed: int = Field(0, ge=0, lt=2**32, description="of all draws")


def run_synthesize(options: SynthesizeCommand) -> int:
    prompts, provenance = None, {}
    if options.prompts is not None:
        prompts, provenance = read_prompts(options.prompts, options.field)
        if options.count > len(prompts):
            raise OptionError("count", options.count, f"{options.prompts} has {len(prompts)} prompts; lower it")
    elif "field" in options.model_fields_set:
        raise OptionError("field", options.field, "names a key of --prompts, which is not given")
    settings = Synthesis(**{name: getattr(options, name) for name in Synthesis.__slots__})
    wrote = synthesize(options.load(), options.out, settings, prompts, provenance, options.progress)
    corpus = read_corpus(options.out)
    facts = {
        "path": str(options.out),
        "wrote": wrote,
        "samples": len(corpus.samples),
        "answer_tokens": corpus.tokens,
        "digest": corpus.digest,
    }
    if options.as_json:
        print_json(facts)
        return 0
    text = f"{options.out}: {wrote} samples added, {len(corpus.samples)} in all, {corpus.tokens} tokens of answers"
    console().print(text, soft_wrap=True, markup=False)
    return 0


def read_prompts(path: Path, field: str) -> tuple[list[Any], dict[str, Any]]:
    """Prompts of a JSON Lines file and where they come from. Refuses the benchmarks' test questions."""
    data = read_bytes(path)
    digest = hashlib.sha256(data).hexdigest()
    if digest in TEST_SETS:
        raise DataError(f"{path}: holds {TEST_SETS[digest]}, which must stay unseen; give other prompts")
    provenance = {"prompts": path.name, "prompts_sha256": digest}
    if field == "prompt":
        return [item.prompt for item in read_items(path)], provenance
    prompts = []
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path} line {number}: not JSON ({error})") from None
        text = found.get(field) if isinstance(found, dict) else None
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{path} line {number}: has no text under {field!r}; name another --field")
        prompts.append(text)
    if not prompts:
        raise DataError(f"{path}: no prompts; give one JSON object per line")
    return prompts, provenance
