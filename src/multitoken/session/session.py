"""A session: prompts in, pieces of text out, any number at once. It joins the engine and the text.

This is the surface for everything that serves several requests: they are submitted and cancelled between steps, and
each step returns the pieces that it brought. A session belongs to one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from multitoken.engine.engine import Emission, Engine, check_request
from multitoken.engine.method import Method
from multitoken.engine.row import Request, Row, TokenLogprob
from multitoken.engine.sampling import LogitsProcessor
from multitoken.errors import OptionError
from multitoken.models.loading import LoadedModel
from multitoken.session.options import GenerateOptions
from multitoken.session.output import Result, result_of
from multitoken.session.text import TextStream

MAX_ROWS = 16


@dataclass(eq=False)
class Handle:
    """A request in a session.

    Attributes:
        row: its row, once it has one (before that it waits).
        finish_reason: None while it runs or waits.
        kept: output tokens that its chunks have brought.
    """

    request: Request
    stream: TextStream
    model: str
    dtype: str
    row: Row | None = None
    finish_reason: str | None = None
    kept: int = 0

    @property
    def waiting(self) -> bool:
        return self.row is None and self.finish_reason is None

    def result(self) -> Result:
        """The answer, or as much of it as there is."""
        row = self.row or Row.of(self.request)
        return result_of(row, self.stream.text, self.kept, self.finish_reason or "cancelled", self.model, self.dtype)


@dataclass(slots=True)
class Chunk:
    """What one step brought to one request.

    Attributes:
        text: certain text; it may be empty while a character or a stop string is incomplete.
        token_ids: tokens that are certain to stay. With stop strings, a token follows when its text does, so that the
            joined chunks have the text, ids and logprobs of the result.
        logprobs: of these tokens, if asked for.
        span: tokens that the step committed.
        result: the whole answer, in the last chunk of a request.
    """

    handle: Handle
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    span: int
    result: Result | None = None


class Session:
    """Serves many requests on one engine.

    Args:
        model: a loaded model.
        max_rows: sequences in the engine at once; further requests wait their turn in order.
    """

    def __init__(self, model: LoadedModel, max_rows: int = MAX_ROWS):
        if isinstance(max_rows, bool) or not isinstance(max_rows, int) or max_rows < 1:
            raise OptionError("max_rows", max_rows, "use a whole number from 1")
        self.model = model
        self.engine = Engine(model.backbone)
        self.max_rows = max_rows
        self._waiting: deque[Handle] = deque()
        self._running: dict[int, Handle] = {}

    @property
    def active(self) -> int:
        """Requests in the engine."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    def submit(
        self,
        prompt: Sequence[int],
        method: Method,
        options: GenerateOptions,
        processors: Sequence[LogitsProcessor] = (),
    ) -> Handle:
        """Ask for an answer to ``prompt`` (token ids). Raises `OptionError` at once for what cannot be served."""
        for processor in processors:
            if not callable(processor):
                raise OptionError("processors", processor, "give objects to call: processor(ids [1, L], scores [1, V])")
        request = options.request(prompt, method, self.model.eos, processors)
        check_request(request, self.model.backbone)
        method.bind(self.model.backbone)
        stream = TextStream(self.model.tokenizer, options.stop, options.skip_special_tokens)
        handle = Handle(request, stream, self.model.name, self.model.dtype)
        self._waiting.append(handle)
        return handle

    def cancel(self, handle: Handle, reason: str = "cancelled") -> None:
        """End a request where it is; its row is free at once. Does nothing if it has finished.

        Its result is what its chunks have brought: text that was held back is left out.
        """
        if handle.finish_reason is not None:
            return
        if handle.row is None:
            self._waiting.remove(handle)
        else:
            self.engine.finish(handle.row, reason)
            handle.row.state = None
            self._running.pop(id(handle.row), None)
        handle.finish_reason = reason

    def step(self) -> list[Chunk]:
        """Let waiting requests in as far as there is room, run one forward, and return what it brought."""
        while self._waiting and len(self._running) < self.max_rows:
            handle = self._waiting.popleft()
            handle.row = self.engine.add(handle.request)
            self._running[id(handle.row)] = handle
        return [self._chunk(emission) for emission in self.engine.step()]

    def close(self) -> None:
        """Cancel everything."""
        for handle in [*self._waiting, *self._running.values()]:
            self.cancel(handle)

    def _chunk(self, emission: Emission) -> Chunk:
        row = emission.row
        handle = self._running[id(row)]
        text = handle.stream.push(emission.tokens, final=row.finish_reason is not None)
        if handle.stream.stopped:
            if row.finish_reason is None:
                self.engine.finish(row, "stop")
            row.finish_reason = "stop"
        whole = row.finish_reason is not None and not handle.stream.stopped
        before, handle.kept = handle.kept, row.generated if whole else handle.stream.certain_tokens
        chunk = Chunk(
            handle,
            text,
            row.output[before : handle.kept],
            row.logprobs[before : handle.kept],
            span=len(emission.tokens),
        )
        if row.finish_reason is not None:
            handle.finish_reason = row.finish_reason
            row.state = None  # the handle may live long
            del self._running[id(row)]
            chunk.result = handle.result()
        return chunk
