"""Who is next: clients take turns, and each client's requests come in order."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from multitoken.server.job import Job


class FairQueue:
    """Waiting jobs. One client's hundred requests delay another client's first by one place only."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, deque[Job]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))

    def __iter__(self) -> Iterator[Job]:
        for jobs in self._clients.values():
            yield from jobs

    def push(self, job: Job) -> None:
        self._clients.setdefault(job.client, deque()).append(job)

    def pop(self) -> Job:
        """The next job. Its client goes to the end of the line. Raises `KeyError` if none waits."""
        client, jobs = self._clients.popitem(last=False)
        job = jobs.popleft()
        if jobs:
            self._clients[client] = jobs
        return job

    def remove(self, job: Job) -> bool:
        """Take a job out; whether it was there."""
        jobs = self._clients.get(job.client)
        if jobs is None or job not in jobs:
            return False
        jobs.remove(job)
        if not jobs:
            del self._clients[job.client]
        return True
