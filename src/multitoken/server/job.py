"""A job: one sequence of a request, on its way between the event loop and the engine's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from time import perf_counter

from multitoken.engine.method import Method
from multitoken.engine.row import TokenLogprob
from multitoken.server.errors import ApiError
from multitoken.session.options import GenerateOptions
from multitoken.session.output import Result
from multitoken.session.session import Handle


@dataclass(slots=True)
class Piece:
    """What one forward brought to a job, or how the job failed.

    Attributes:
        span: tokens that the forward committed.
        result: the whole answer, in the last piece of a job that ends well.
        error: the last piece of any other job.
        cut: the server ended it before its time.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    span: int = 0
    result: Result | None = None
    error: ApiError | None = None
    cut: bool = False

    @property
    def last(self) -> bool:
        return self.result is not None or self.error is not None


@dataclass(eq=False)
class Job:
    """One prompt and what is wanted of it. Made on the event loop; its pieces arrive there.

    Attributes:
        take: called on the event loop with each piece.
        client: whose turn it takes in the queue.
        deadline: on the clock of `perf_counter`.
        handle: set by the engine's thread once a row is free.
        arrived, admitted, first_piece, last_piece: times, for metrics.
    """

    prompt: list[int]
    method: Method
    options: GenerateOptions
    client: str
    deadline: float
    pieces: asyncio.Queue[Piece] = field(default_factory=asyncio.Queue)
    take: Callable[[Piece], None] = field(init=False)
    handle: Handle | None = None
    done: bool = False
    arrived: float = field(default_factory=perf_counter)
    admitted: float = 0.0
    first_piece: float = 0.0
    last_piece: float = 0.0

    def __post_init__(self) -> None:
        self.take = self.pieces.put_nowait

    def forward(self, take: Callable[[Piece], None]) -> None:
        """Hand all pieces to ``take`` from now on, those that have come already first."""
        while not self.pieces.empty():
            take(self.pieces.get_nowait())
        self.take = take

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """Pieces up to the last. A failure is raised."""
        while True:
            piece = await self.pieces.get()
            if piece.error is not None:
                raise piece.error
            yield piece
            if piece.last:
                return

    @property
    def waited(self) -> float:
        """Seconds in the queue."""
        return max(self.admitted - self.arrived, 0.0)

    @property
    def first_token_seconds(self) -> float:
        """Seconds from arrival to the first token."""
        return max(self.first_piece - self.arrived, 0.0)
