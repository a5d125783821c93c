"""Schemathesis against the server's own OpenAPI: whatever comes in, no answer is a 500."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from serving import Running

schemathesis = pytest.importorskip(
    "schemathesis", reason="schemathesis is not installed (pip install 'multitoken[dev]')"
)

QUIET = dict(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def hammer(server: Running, examples: int) -> int:
    """Send so many generated requests to each operation; returns the number of answers."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    answers = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
        cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))

        @settings(max_examples=examples, **QUIET)  # type: ignore[arg-type]
        @given(case=cases)
        def send(case) -> None:
            nonlocal answers
            if isinstance(case.body, dict) and isinstance(case.body.get("max_tokens"), int):
                case.body["max_tokens"] = min(case.body["max_tokens"], 4)
            answer = case.call(timeout=30)
            answers += 1
            assert answer.status_code < 500, (case.body, answer.text)
            if answer.status_code >= 400:
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
                assert "Traceback" not in answer.text

        send()
    return answers


def test_no_request_that_the_schema_suggests_is_a_500(server: Running):
    assert hammer(server, 8) > 40


@pytest.mark.slow
def test_many_requests_that_the_schema_suggests_are_no_500(server: Running):
    assert hammer(server, 200) > 500
