"""A session: prompts in, pieces of text out, any number at once. It joins the engine and the text.

This is the surface for everything that serves several requests: they are submitted and cancelled between steps, and
each step returns the pieces that it brought. A session belongs to one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from multitoken.engine.engine import Emission, Engine, check_request
from multitoken.engine.method import Method
from multitoken.engine.row import Request, Row, TokenLogprob
from multitoken.engine.sampling import LogitsProcessor
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
    """

    request: Request
    stream: TextStream
    model: str
    dtype: str
    row: Row | None = None
    finish_reason: str | None = None
    kept: int = field(default=0)

    @property
    def waiting(self) -> bool:
        return self.row is None and self.finish_reason is None

    def result(self) -> Result:
        """The answer, or as much of it as there is."""
        row = self.row or Row.of(self.request)
        done = self.finish_reason is not None
        kept = self.kept if done else row.generated
        return result_of(row, self.stream.text, kept, self.finish_reason or "cancelled", self.model, self.dtype)


@dataclass(slots=True)
class Chunk:
    """What one step brought to one request.

    Attributes:
        text: certain text; it may be empty while a character or a stop string is incomplete.
        token_ids: committed tokens. Those past the start of a stop string are left out.
        logprobs: of these tokens, if asked for.
        result: the whole answer, in the last chunk of a request.
    """

    handle: Handle
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    result: Result | None = None

    @property
    def span(self) -> int:
        """Tokens that the step committed."""
        return len(self.token_ids)


class Session:
    """Serves many requests on one engine.

    Args:
        model: a loaded model.
        max_rows: sequences in the engine at once; further requests wait their turn in order.
    """

    def __init__(self, model: LoadedModel, max_rows: int = MAX_ROWS):
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
        request = options.request(prompt, method, self.model.eos, processors)
        check_request(request, self.model.backbone)
        method.bind(self.model.backbone)
        stream = TextStream(self.model.tokenizer, options.stop, options.skip_special_tokens)
        handle = Handle(request, stream, self.model.name, self.model.dtype)
        self._waiting.append(handle)
        return handle

    def cancel(self, handle: Handle, reason: str = "cancelled") -> None:
        """End a request where it is; its row is free at once. Does nothing if it has finished."""
        if handle.finish_reason is not None:
            return
        if handle.row is None:
            self._waiting.remove(handle)
        else:
            self.engine.finish(handle.row, reason)
            self._running.pop(id(handle.row), None)
            handle.stream.push([], final=True)
            handle.kept = handle.row.generated
        handle.finish_reason = reason

    def step(self) -> list[Chunk]:
        """Let waiting requests in as far as there is room, run one forward, and return what it brought."""
        while self._waiting and len(self._running) < self.max_rows:
            handle = self._waiting.popleft()
            handle.row = self.engine.add(handle.request)
            self._running[id(handle.row)] = handle
        return [self._chunk(emission) for emission in self.engine.step()]

    def run(self) -> None:
        """Step until nothing is left to do."""
        while self._waiting or self._running:
            self.step()

    def close(self) -> None:
        """Cancel everything."""
        for handle in [*self._waiting, *self._running.values()]:
            self.cancel(handle)

    def _chunk(self, emission: Emission) -> Chunk:
        row = emission.row
        handle = self._running[id(row)]
        before = row.generated - len(emission.tokens)
        text = handle.stream.push(emission.tokens, final=row.finish_reason is not None)
        handle.kept = row.generated
        if handle.stream.stopped:
            handle.kept = min(handle.stream.kept_tokens(row.output), row.generated)
            if row.finish_reason is None:
                self.engine.finish(row, "stop")
            row.finish_reason = "stop"
        kept = max(handle.kept - before, 0)
        chunk = Chunk(handle, text, emission.tokens[:kept], row.logprobs[before : before + kept])
        if row.finish_reason is not None:
            handle.finish_reason = row.finish_reason
            del self._running[id(row)]
            chunk.result = handle.result()
        return chunk
