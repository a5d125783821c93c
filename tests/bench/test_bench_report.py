"""The report and the comparison: self-contained, complete, and honest about what is missing."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser

import pytest
from bench_support import bench, write_questions

from multitoken.bench import figures
from multitoken.bench.report import report_page
from multitoken.bench.schema import read_results
from multitoken.bench.side_by_side import compare, comparison_page
from multitoken.errors import DataError, MultitokenError

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("report")
    bench(write_questions(made), made, cost=True)
    return made


class Loads(HTMLParser):
    """Collects what a browser would fetch, and how the elements nest."""

    def __init__(self):
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.fetched += [
            v for k, v in attrs if k in ("src", "href", "xlink:href", "data") and v and not v.startswith("#")
        ]
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(text):
    found = Loads()
    found.feed(text)
    assert not found.open
    return found


def test_the_report_opens_without_outside_requests(folder):
    text = (folder / "report.html").read_text("utf-8")
    found = parsed(text)
    assert found.fetched == [] and "script" not in found.counts and "link" not in found.counts
    assert not re.search(r"https?://|url\((?!#)|@import", text)
    assert found.counts["svg"] == 5, "tau, speed-up, blocks, cost, spans"
    assert "prefers-color-scheme: dark" in text and "currentColor" in text
    assert figures.INK not in text and figures.GRID not in text


def test_the_report_says_what_the_results_say(folder):
    results = read_results(folder)
    text = report_page(results)
    pld = results.method("pld")
    assert pld is not None
    for piece in (f"{pld.overall.tau:.3f}", "7/7", "writing", "rag", results.provenance.data_sha256, "depth 1"):
        assert piece in text


def test_markup_in_names_is_shown_not_run(folder):
    results = read_results(folder)
    results.methods[1].label = "<script>alert(1)</script>"
    results.provenance.command = "multitoken bench <b>"
    text = report_page(results)
    assert "<script" not in text and "<b>" not in text.replace("<b>", "", text.count('class="card"><b>'))
    parsed(text)


def test_a_run_with_one_category_and_answers_of_one_token(tmp_path):
    data = tmp_path / "q.jsonl"
    data.write_text('{"prompt": "hi"}\n')
    results = bench(data, tmp_path, task="jsonl", max_new_tokens=1)
    assert results.methods[0].overall.tau is None and results.methods[0].overall.speedup is None
    parsed((tmp_path / "report.html").read_text("utf-8"))


def test_missing_matplotlib_is_told_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MultitokenError, match=r"multitoken\[plot\]"):
        bench(write_questions(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pareto_front():
    assert figures.pareto_front([(1, 1), (2, 0.9), (1.5, 0.8), (3, 0.5), (2, 0.7)]) == [(1, 1), (2, 0.9), (3, 0.5)]


def test_comparison(folder, tmp_path):
    bench(write_questions(tmp_path), tmp_path, limit_per_category=1)
    found = compare(folder, tmp_path / "results.json")
    assert ("limit_per_category", "None", "1") in found.circumstances
    assert not [what for what, _, _ in found.circumstances if what.startswith(("versions", "machine", "model"))]
    tau = next(p for p in found.pairs if (p.method, p.column) == ("plain", "tau"))
    assert (tau.a, tau.b, tau.change, tau.better) == ("1.000", "1.000", 0, None)
    forwards = next(p for p in found.pairs if (p.method, p.column) == ("plain", "forwards"))
    assert forwards.change is not None and forwards.change < 0 and forwards.better is True
    parsed(comparison_page(found, "a", "b"))


def test_comparison_names_methods_that_one_lacks(folder):
    a, b = read_results(folder), read_results(folder)
    b.methods[1].label = "other"
    from multitoken.bench.side_by_side import compare_results

    found = compare_results(a, b)
    assert (found.only_a, found.only_b) == (["pld"], ["other"])
    assert not found.circumstances


@pytest.mark.parametrize(
    ("text", "message"), [("{}", "not results of version 1"), ('{"version": 2}', "version"), (None, "cannot be read")]
)
def test_files_that_are_no_results(tmp_path, text, message):
    path = tmp_path / "results.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_results(path)
