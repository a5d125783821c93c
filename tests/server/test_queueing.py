"""Turns in the queue."""

from __future__ import annotations

import pytest

from multitoken.methods import Plain
from multitoken.server.job import Job
from multitoken.server.queueing import FairQueue
from multitoken.session.options import GenerateOptions


def job(client: str) -> Job:
    return Job([1], Plain(), GenerateOptions(), client, 0.0)  # type: ignore[call-arg]


def test_clients_take_turns_and_each_keeps_its_order():
    queue = FairQueue()
    jobs = [job(client) for client in "aaaabbc"]
    for each in jobs:
        queue.push(each)
    assert len(queue) == 7
    order = [queue.pop() for _ in range(7)]
    assert [each.client for each in order] == list("abcabaa")
    for client in "abc":
        assert [each for each in order if each.client == client] == [each for each in jobs if each.client == client]
    with pytest.raises(KeyError):
        queue.pop()


def test_a_job_can_be_taken_out():
    queue = FairQueue()
    first, second, other = job("a"), job("a"), job("b")
    for each in (first, second, other):
        queue.push(each)
    assert queue.remove(second) and not queue.remove(second)
    assert list(queue) == [first, other]
    assert queue.remove(first) and queue.pop() is other and len(queue) == 0
