"""The thread that owns the session. The event loop talks to it through an inbox; it answers with pieces.

Jobs join and leave between forwards. Nothing else touches the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from time import perf_counter

from multitoken.errors import MultitokenError, OptionError
from multitoken.models.loading import LoadedModel
from multitoken.server.config import ServerSettings
from multitoken.server.errors import ApiError, of_option
from multitoken.server.job import Job, Piece
from multitoken.server.metrics import Metrics
from multitoken.server.queueing import FairQueue
from multitoken.session.session import Chunk, Session

logger = logging.getLogger("multitoken.server")
PATIENCE = 0.5  # seconds between looks at deadlines while nothing else happens
CANCELLED, TIMEOUT, SHUTDOWN = "cancelled", "timeout", "shutdown"


def busy(queued: int) -> ApiError:
    return ApiError(429, f"{queued} sequences are waiting already; try again later", code="queue_full", retry=True)


def shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down; try again later", code="shutting_down", retry=True)


def timed_out(seconds: float) -> ApiError:
    return ApiError(504, f"the request took longer than {seconds:g} seconds; ask for fewer tokens", code="timeout")


class Worker:
    """Runs jobs on one session in a thread of its own.

    Args:
        model: the model; nobody else may run it meanwhile.
        settings: limits.
        metrics: where steps and sequences are counted.
    """

    def __init__(self, model: LoadedModel, settings: ServerSettings, metrics: Metrics):
        self._model = model
        self._settings = settings
        self._metrics = metrics
        self._session = Session(model, settings.max_rows)
        self._queue = FairQueue()
        self._running: dict[int, Job] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = Condition()
        self._unsettled = 0  # jobs that have been submitted and have not ended
        self._draining = self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    # -- for the event loop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def healthy(self) -> bool:
        return self._thread.is_alive() and not self._draining

    @property
    def active(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return max(self._unsettled - len(self._running), 0)

    def submit(self, jobs: list[Job]) -> None:
        """Let jobs in, all or none. Raises `ApiError` if there is no room for them or no more work is taken."""
        with self._wake:
            if self._draining or not self._thread.is_alive():
                raise shutting_down()
            room = self._settings.max_rows + self._settings.max_queue
            if len(jobs) > room:
                raise ApiError(400, f"{len(jobs)} choices are more than this server's {room}; ask for fewer", param="n")
            if self._unsettled + len(jobs) > room:
                raise busy(self.waiting)
            self._unsettled += len(jobs)
            self._inbox.extend(lambda job=job: self._queue.push(job) for job in jobs)
            self._wake.notify()

    def cancel(self, jobs: list[Job]) -> None:
        """End jobs that nobody waits for any more. Does nothing to those that have ended."""
        with self._wake:
            self._inbox.extend(lambda job=job: self._end(job, CANCELLED) for job in jobs if not job.done)
            self._wake.notify()

    def drain(self) -> None:
        """Take no more jobs and refuse those that wait; those that have a row go on."""
        with self._wake:
            self._draining = True
            self._inbox.append(self._refuse_waiting)
            self._wake.notify()

    def cut(self) -> None:
        """End all jobs now, with what they have."""
        with self._wake:
            self._draining = True
            self._inbox.append(self._cut_running)
            self._wake.notify()

    @property
    def idle(self) -> bool:
        return self._unsettled == 0

    def stop(self, timeout: float = 10.0) -> None:
        """End all jobs and the thread."""
        self.cut()
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout)

    # -- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._take_messages()
            if self._stopping:
                return
            self._end_overdue()
            self._admit()
            if self._running:
                self._step()
            self._metrics.queue.set(len(self._queue))
            self._metrics.rows.set(len(self._running))

    def _take_messages(self) -> None:
        with self._wake:
            if not (self._inbox or self._running or self._stopping):
                self._wake.wait(PATIENCE if len(self._queue) else None)
            messages = list(self._inbox)
            self._inbox.clear()
        for message in messages:
            message()

    def _admit(self) -> None:
        while len(self._queue) and len(self._running) < self._settings.max_rows:
            job = self._queue.pop()
            try:
                job.handle = self._session.submit(job.prompt, job.method, job.options)
            except OptionError as error:
                self._fail(job, of_option(error))
            except MultitokenError as error:
                self._fail(job, ApiError(400, str(error), code="invalid_value"))
            except Exception as error:
                self._report(error, "a request could not be started")
                self._fail(job, ApiError(500, "the request could not be started", code="internal_error"))
            else:
                job.admitted = perf_counter()
                self._running[id(job.handle)] = job

    def _step(self) -> None:
        try:
            chunks = self._session.step()
        except Exception as error:
            self._report(error, "a step failed; its sequences are given up")
            self._restart()
            return
        self._metrics.steps.inc()
        self._post([self._piece(chunk) for chunk in chunks])

    def _piece(self, chunk: Chunk) -> tuple[Job, Piece]:
        job = self._running[id(chunk.handle)]
        name, now = job.method.name, perf_counter()
        if not job.first_piece:
            job.first_piece = now
            self._metrics.first_token.labels(name).observe(now - job.arrived)
            self._metrics.prompt_tokens.inc(len(job.prompt))
        elif chunk.span:
            # One observation per step: a bucket per token would weigh long spans twice.
            self._metrics.inter_token.labels(name).observe((now - job.last_piece) / chunk.span)
        job.last_piece = now
        if chunk.result is not None:
            del self._running[id(chunk.handle)]
            self._settle(job)
            self._metrics.duration.labels(name).observe(now - job.arrived)
            self._metrics.finished(chunk.result)
        return job, Piece(chunk.text, chunk.token_ids, chunk.logprobs, chunk.span, chunk.result)

    def _end(self, job: Job, reason: str) -> None:
        """End a job from outside, wherever it is."""
        if job.done:
            return
        if job.handle is None:
            self._queue.remove(job)
        else:
            del self._running[id(job.handle)]
            self._session.cancel(job.handle, reason)
            self._metrics.finished(job.handle.result())
        if reason == TIMEOUT:
            self._fail(job, timed_out(self._settings.request_timeout))
        elif reason == SHUTDOWN and job.handle is not None:
            self._settle(job)
            self._post([(job, Piece(result=job.handle.result(), cut=True))])
        else:
            self._fail(job, shutting_down() if reason == SHUTDOWN else ApiError(499, "cancelled"))

    def _end_overdue(self) -> None:
        now = perf_counter()
        for job in [*self._queue, *self._running.values()]:
            if job.deadline <= now:
                self._end(job, TIMEOUT)

    def _refuse_waiting(self) -> None:
        for job in list(self._queue):
            self._end(job, SHUTDOWN)

    def _cut_running(self) -> None:
        for job in [*self._queue, *self._running.values()]:
            self._end(job, SHUTDOWN)

    def _restart(self) -> None:
        """After a step that raised, the cache may be anything: begin again with a new session."""
        jobs = list(self._running.values())
        self._running.clear()
        self._session = Session(self._model, self._settings.max_rows)
        self._metrics.failures.inc()
        for job in jobs:
            self._fail(
                job, ApiError(500, "the engine failed at this request or at one beside it; try again", retry=True)
            )

    def _fail(self, job: Job, error: ApiError) -> None:
        self._settle(job)
        self._post([(job, Piece(error=error))])

    def _settle(self, job: Job) -> None:
        job.done = True
        with self._wake:
            self._unsettled -= 1

    def _post(self, pieces: list[tuple[Job, Piece]]) -> None:
        """Hand pieces over, all of a step in one call."""
        if not pieces or self._loop is None or self._loop.is_closed():
            return

        def deliver() -> None:
            for job, piece in pieces:
                job.take(piece)

        try:
            self._loop.call_soon_threadsafe(deliver)
        except RuntimeError:  # the loop has just closed
            logger.debug("an answer came after the end")

    def _report(self, error: Exception, what: str) -> None:
        logger.error("%s: %s: %s", what, type(error).__name__, error, exc_info=error)
