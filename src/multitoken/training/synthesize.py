"""Text from the model itself: it writes a user's turn, then answers it.

A drafter has to predict what the model would write, so it learns from that and not from foreign text. Questions and
answers are requests of one session; an answer is asked for as soon as its question is there, so the batch stays full.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

import multitoken
from multitoken.engine.method import Method
from multitoken.errors import DataError, OptionError
from multitoken.methods import create
from multitoken.methods.registry import validated
from multitoken.models.loading import LoadedModel
from multitoken.models.progress import Progress
from multitoken.session.options import GenerateOptions
from multitoken.session.prompts import encode
from multitoken.session.session import Handle, Session
from multitoken.storage import LineFile
from multitoken.training.corpus import SCHEMA, read_header

MARK = "\u2063here\u2063"
SHORTEST_PROMPT = 8  # characters of a question that is worth an answer
TRIES_PER_SAMPLE = 8


@dataclass(frozen=True, slots=True)
class Synthesis:
    """How a corpus is written.

    Attributes:
        count: samples wanted.
        prompt_tokens: most tokens of a question that the model writes.
        answer_tokens: most tokens of an answer.
        prompt_temperature, prompt_top_p: how questions are sampled.
        answer_temperature: how answers are sampled (0: greedy).
        rows: sequences in one forward.
        seed: of all draws; a question follows from it and from its own number.
    """

    count: int
    prompt_tokens: int = 64
    answer_tokens: int = 128
    prompt_temperature: float = 1.0
    prompt_top_p: float = 0.95
    answer_temperature: float = 0.0
    rows: int = 32
    seed: int = 0

    def question(self, number: int) -> GenerateOptions:
        return _generation(
            max_new_tokens=self.prompt_tokens,
            temperature=self.prompt_temperature,
            top_p=self.prompt_top_p,
            seed=_seed(self.seed, 2 * number),
        )

    def answer(self, number: int) -> GenerateOptions:
        return _generation(
            max_new_tokens=self.answer_tokens,
            temperature=self.answer_temperature,
            seed=_seed(self.seed, 2 * number + 1),
        )


def synthesize(
    model: LoadedModel,
    out: Path,
    options: Synthesis,
    prompts: Sequence[Any] | None = None,
    provenance: dict[str, Any] | None = None,
    progress: bool = True,
) -> int:
    """Write ``options.count`` samples to ``out``, or as many as are missing there. Returns how many it wrote.

    Args:
        model: writes and answers.
        out: a new file, or one that the same call began.
        prompts: what to answer (strings or conversations); by default the model writes its questions.
        provenance: goes into the header, such as where the prompts come from.

    Raises:
        DataError: ``out`` was begun with other options, or the questions run out of new ones.
    """
    header = _header(model, options, prompts, provenance or {})
    writer = _Writer(model, options, prompts)
    with Progress(progress, f"writing {options.count} samples", options.count) as bar, _Output(out, header) as file:
        writer.skip(file.done)
        bar.at(len(file.done))
        wrote = 0
        for record in writer.records(options.count - len(file.done)):
            file.append(record)
            bar.advance(1)
            wrote += 1
    return wrote


class _Writer:
    """Runs questions and answers through one session."""

    def __init__(self, model: LoadedModel, options: Synthesis, prompts: Sequence[Any] | None):
        self._model, self._options, self._prompts = model, options, prompts
        self._method: Method = create("plain")
        self._numbers: set[int] = set()
        self._seen: set[tuple[int, ...]] = set()
        self._beginning = None if prompts is not None else question_prefix(model.tokenizer)

    def skip(self, done: Sequence[dict[str, Any]]) -> None:
        """Leave out what is written already."""
        self._numbers = {record["number"] for record in done}
        self._seen = {tuple(record["prompt"]) for record in done}

    def records(self, count: int) -> Iterator[dict[str, Any]]:
        """``count`` new samples, in the order in which they are finished."""
        session = Session(self._model, max_rows=self._options.rows)
        numbers = self._fresh_numbers(count)
        questions: dict[Handle, int] = {}
        answers: dict[Handle, tuple[int, list[int]]] = {}
        given = 0
        try:
            while given < count:
                while len(questions) + len(answers) < min(self._options.rows, count - given):
                    number = next(numbers, None)
                    if number is None:
                        break
                    self._ask(session, number, questions, answers)
                if not questions and not answers:
                    raise DataError(
                        f"only {given} of {count} samples could be made: there are no further questions that differ; "
                        "lower --count, or give more prompts"
                    )
                for chunk in session.step():
                    if chunk.result is None:
                        continue
                    if chunk.handle in answers:
                        number, prompt = answers.pop(chunk.handle)
                        given += 1
                        yield self._record(number, prompt, chunk.handle)
                    else:
                        number = questions.pop(chunk.handle)
                        text = chunk.result.text.strip()
                        if len(text) >= SHORTEST_PROMPT:
                            self._answer(session, number, self._encode(text), answers)
        finally:
            session.close()

    def _fresh_numbers(self, count: int) -> Iterator[int]:
        limit = len(self._prompts) if self._prompts is not None else len(self._numbers) + count * TRIES_PER_SAMPLE
        return (number for number in range(limit) if number not in self._numbers)

    def _ask(
        self, session: Session, number: int, questions: dict[Handle, int], answers: dict[Handle, tuple[int, list[int]]]
    ) -> None:
        if self._prompts is not None:
            self._answer(session, number, self._encode(self._prompts[number]), answers)
            return
        assert self._beginning is not None
        handle = session.submit(self._beginning, self._method, self._options.question(number))
        questions[handle] = number

    def _answer(
        self, session: Session, number: int, prompt: list[int], answers: dict[Handle, tuple[int, list[int]]]
    ) -> None:
        if tuple(prompt) in self._seen:
            return
        self._seen.add(tuple(prompt))
        handle = session.submit(prompt, self._method, self._options.answer(number))
        answers[handle] = (number, prompt)

    def _encode(self, prompt: Any) -> list[int]:
        return encode(self._model.tokenizer, prompt)

    def _record(self, number: int, prompt: list[int], handle: Handle) -> dict[str, Any]:
        assert handle.row is not None
        return {
            "number": number,
            "prompt": prompt,
            "answer": list(handle.row.output),
            "source": "self" if self._prompts is None else "file",
            "finish": handle.finish_reason,
        }


class _Output:
    """The file: a header, then whole lines; what a kill left is taken up again."""

    def __init__(self, path: Path, header: dict[str, Any]):
        self.path, self._header = path, header
        self.done: list[dict[str, Any]] = []

    def __enter__(self) -> _Output:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = LineFile(self.path)
        except OSError as error:
            raise DataError(f"{self.path}: {error.strerror}; choose another --out") from error
        try:
            self._take_up()
        except BaseException:
            self._file.close()
            raise
        return self

    def append(self, record: dict[str, Any]) -> None:
        try:
            self._file.append(json.dumps(record) + "\n")
        except OSError as error:
            raise DataError(
                f"{self.path}: {error.strerror}; what is written is kept, and the same command goes on there"
            ) from error

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _take_up(self) -> None:
        lines = self._file.lines()
        whole = [line for line in lines if line.endswith(b"\n")]
        if not whole:
            if lines:
                raise DataError(f"{self.path}: is no corpus; choose another --out")
            self._file.append(json.dumps(self._header) + "\n")
            return
        found = read_header(whole[0], self.path)
        for key, value in self._header.items():
            if key not in ("version", "count") and found.get(key) != value:
                raise DataError(
                    f"{self.path}: was begun with {key}={found.get(key)!r}, not {value!r}; choose another --out"
                )
        self.done = [json.loads(line) for line in whole[1:]]
        self._file.keep(whole)


def question_prefix(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids after which the model writes a user's turn, by its own chat template.

    A tokenizer without a template has its beginning of text.
    """
    if tokenizer.chat_template is None:
        begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        if begin is None:
            raise OptionError("prompts", None, "the model has neither a chat template nor a first token; give a file")
        return [int(begin)]  # type: ignore[arg-type]
    text = str(tokenizer.apply_chat_template([{"role": "user", "content": MARK}], tokenize=False))
    before, found, _ = text.partition(MARK)
    if not found or not before:
        raise OptionError("prompts", None, "the chat template hides where a user's turn begins; give a file")
    return [int(token) for token in tokenizer(before, add_special_tokens=False)["input_ids"]]  # type: ignore[union-attr]


def _header(
    model: LoadedModel, options: Synthesis, prompts: Sequence[Any] | None, provenance: dict[str, Any]
) -> dict[str, Any]:
    settings = {name: getattr(options, name) for name in Synthesis.__slots__ if name != "rows"}
    return {
        "schema": SCHEMA,
        "model": model.name,
        "fingerprint": model.backbone.fingerprint,
        "dtype": model.dtype,
        "quantize": model.backbone.quantize,
        **settings,
        "source": "self" if prompts is None else "file",
        **provenance,
        "version": multitoken.__version__,
    }


def _generation(**options: Any) -> GenerateOptions:
    return validated(GenerateOptions, options, "synthesize")


def _seed(seed: int, number: int) -> int:
    return (seed * 1_000_003 + number) % 2**64
