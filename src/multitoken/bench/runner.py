"""The run: every competitor answers every question, by turns, and each answered question is on disk at once."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from multitoken.bench.competitors import Competitor, Task
from multitoken.bench.divergence import explain
from multitoken.bench.records import DivergenceRecord, Journal, QuestionRecord, Trace, TurnRecord
from multitoken.bench.tasks import Question, TaskData, is_correct
from multitoken.errors import DataError
from multitoken.models.loading import LoadedModel

REFERENCE = "plain"
WARM_UP_TOKENS = 8
Messages = list[dict[str, str]]


@dataclass(slots=True)
class Runner:
    """Asks the questions of ``data``.

    A later turn sees the reference's answers to those before it, whoever is asked, so that all competitors answer
    identical prompts.

    Attributes:
        competitors: the first is the reference, plain decoding.
        batch: questions of one category answered at once.
    """

    model: LoadedModel
    data: TaskData
    competitors: Sequence[Competitor]
    max_new_tokens: int
    batch: int = 1
    temperature: float = 0.0
    seed: int = 0
    progress: bool = True

    def run(self, journal: Journal) -> None:
        """Ask what ``journal`` does not hold yet."""
        self.check_lengths()
        done = {record.id for record in journal.records}
        left = [question for question in self.data.questions if question.id not in done]
        if not left:
            return
        self._warm_up(left[0])
        with Bar(self.progress, len(self.data.questions), len(done)) as bar:
            for number, group in enumerate(groups(left, self.batch)):
                journal.append(self.ask(group, number))
                bar.advance(len(group))

    def ask(self, group: Sequence[Question], number: int = 0) -> list[QuestionRecord]:
        """Let all competitors answer a group of questions; ``number`` decides who begins."""
        messages: list[Messages] = [[] for _ in group]
        turns: list[list[TurnRecord]] = [[] for _ in group]
        for turn in range(max(len(question.turns) for question in group)):
            active = [i for i, question in enumerate(group) if turn < len(question.turns)]
            for i in active:
                messages[i].append({"role": "user", "content": group[i].turns[turn]})
            tasks = [self._task(messages[i], f"{group[i].id}/{turn}") for i in active]
            answers = self._answers(tasks, number + turn)
            for place, (i, task) in enumerate(zip(active, tasks, strict=True)):
                traces = {label: found[place] for label, found in answers.items()}
                turns[i].append(self._turn(task, traces))
                messages[i].append({"role": "assistant", "content": traces[REFERENCE].text})
        return [self._record(question, found) for question, found in zip(group, turns, strict=True)]

    def check_lengths(self) -> None:
        """Raise `DataError` now for a question that could outgrow the model's context in the middle of the run."""
        limit = self.model.backbone.max_positions
        if limit is None:
            return
        for question in self.data.questions:
            asked: Messages = []
            for turn in question.turns:
                asked += [{"role": "user", "content": turn}, {"role": "assistant", "content": ""}]
            longest = len(encode(self.model, asked[:-1])) + len(question.turns) * self.max_new_tokens
            if longest > limit:
                raise DataError(
                    f"{self.data.source}: question {question.id} may need {longest} tokens and the model's context "
                    f"holds {limit}; lower --max-new-tokens, or leave the question out of the file"
                )

    # -- internals --------------------------------------------------------------------------------------------------

    def _task(self, messages: Messages, name: str) -> Task:
        # The seed depends on the question alone, so neither grouping nor resuming changes what is drawn.
        seed = zlib.crc32(f"{self.seed}/{name}".encode())
        prompt = tuple(encode(self.model, messages))
        return Task(prompt, self.max_new_tokens, self.temperature, seed, self.model.eos)

    def _answers(self, tasks: Sequence[Task], first: int) -> dict[str, list[Trace]]:
        """Answers by label. Who begins changes, so that no competitor always finds the machine as another left it."""
        start = first % len(self.competitors)
        order = [*self.competitors[start:], *self.competitors[:start]]
        found = {competitor.label: competitor.answer(tasks) for competitor in order}
        return {c.label: [self._with_text(trace) for trace in found[c.label]] for c in self.competitors}

    def _with_text(self, trace: Trace) -> Trace:
        tokenizer = self.model.tokenizer
        text = str(tokenizer.decode(trace.tokens, skip_special_tokens=True))
        counted = max(len(tokenizer(text).input_ids) - 1, 0)
        return trace.model_copy(update={"text": text, "retokenized": counted})

    def _turn(self, task: Task, traces: dict[str, Trace]) -> TurnRecord:
        divergences = {}
        for competitor in self.competitors[1:]:
            if competitor.peer and self.temperature:
                continue  # a peer draws with random numbers of its own
            found = self._divergence(task, traces[REFERENCE].tokens, traces[competitor.label].tokens)
            if found is not None:
                divergences[competitor.label] = found
        return TurnRecord(prompt_tokens=len(task.prompt), traces=traces, divergences=divergences)

    def _divergence(self, task: Task, reference: list[int], other: list[int]) -> DivergenceRecord | None:
        found = explain(self.model.backbone, task.prompt, reference, other)
        if found is None:
            return None
        if self.temperature:
            found = replace(found, near_tie=None)  # the logits of drawn tokens are far apart as a rule
        return DivergenceRecord(
            **found.to_dict(), reference_text=self._piece(found.reference), other_text=self._piece(found.other)
        )

    def _piece(self, token: int | None) -> str | None:
        return None if token is None else str(self.model.tokenizer.decode([token]))

    def _record(self, question: Question, turns: list[TurnRecord]) -> QuestionRecord:
        correct = {}
        if self.data.scored:
            answers = turns[-1].traces
            correct = {label: is_correct(self.data.task, question, trace.text) for label, trace in answers.items()}
        return QuestionRecord(id=question.id, category=question.category, turns=turns, correct=correct)

    def _warm_up(self, question: Question) -> None:
        """One short answer by everyone that is not counted: tables, calibrations and caches are made here."""
        task = self._task([{"role": "user", "content": question.turns[0]}], "warm-up")
        short = replace(task, max_new_tokens=min(WARM_UP_TOKENS, self.max_new_tokens))
        for competitor in self.competitors:
            competitor.answer([short])


def groups(questions: Sequence[Question], size: int) -> Iterator[list[Question]]:
    """Runs of up to ``size`` questions of one category, in order of the categories' first questions."""
    by_category: dict[str, list[Question]] = {}
    for question in questions:
        by_category.setdefault(question.category, []).append(question)
    for members in by_category.values():
        for start in range(0, len(members), size):
            yield members[start : start + size]


def encode(model: LoadedModel, messages: Messages) -> list[int]:
    """Token ids of a conversation by the model's chat template; a model without one sees the bare texts."""
    tokenizer = model.tokenizer
    if tokenizer.chat_template is None:
        return tokenizer("\n\n".join(message["content"] for message in messages)).input_ids
    encoded: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    return encoded["input_ids"]


class Bar:
    """Questions done and the time that is left, on standard error; on a log file a line now and then."""

    EVERY = 30.0  # seconds between lines

    def __init__(self, enabled: bool, total: int, done: int):
        self._enabled, self._total, self._done, self._before = enabled, total, done, done
        self._bar: RichProgress | None = None
        self._console = Console(file=sys.stderr, highlight=False)

    def __enter__(self) -> Self:
        self._started = self._told = perf_counter()
        if self._enabled and self._console.is_terminal:
            columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
            self._bar = RichProgress(*columns, TextColumn("left"), TimeRemainingColumn(), console=self._console)
            self._bar.start()
            self._row = self._bar.add_task("questions", total=self._total, completed=self._done)
        elif self._enabled:
            self._tell()
        return self

    def advance(self, count: int) -> None:
        self._done += count
        if self._bar is not None:
            self._bar.advance(self._row, count)
        elif self._enabled and (perf_counter() - self._told > self.EVERY or self._done == self._total):
            self._tell()

    def _tell(self) -> None:
        self._told = perf_counter()
        asked = self._done - self._before
        left = (self._told - self._started) / asked * (self._total - self._done) if asked else None
        rest = "" if left is None else f", about {left / 60:.1f} min left"
        self._console.print(f"{self._done} of {self._total} questions{rest}", markup=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
