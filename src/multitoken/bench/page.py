"""A self-contained HTML page: styles inside, light or dark as the reader's system is, nothing from outside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5c6675; --line: #d9dee6; --back: #fbfcfe; --card: #ffffff;
  --accent: #2468d6; --good: #12805c; --bad: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #9aa5b4; --line: #2f3845; --back: #12161c;
  --card: #1a2029; --accent: #74a7ff; --good: #4cc79a; --bad: #ff8a7a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 76rem; background: var(--back); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .6rem; }
p { margin: .4rem 0 .8rem; max-width: 52rem; }
.soft, figcaption { color: var(--soft); font-size: .92rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(12rem, 1fr)); gap: .8rem; margin: 1.4rem 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem 1rem; }
.card b { display: block; font-size: 1.55rem; font-weight: 650; font-variant-numeric: tabular-nums; line-height: 1.3; }
.wide { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: .6rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .42rem .7rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }
thead th { border-top: 0; white-space: normal; min-width: 4.2rem; color: var(--soft); font-weight: 550;
  vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--card); }
tbody tr:last-child.sum td { font-weight: 650; }
td.best { color: var(--accent); font-weight: 650; }
td.text, th.text { text-align: left; }
.good { color: var(--good); } .bad { color: var(--bad); }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem; }
figure svg { display: block; width: 100%; height: auto; max-height: 40rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(34rem, 100%), 1fr)); gap: 1rem; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--accent); }
code { font: .86em ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; font-size: .92rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """A whole document; ``parts`` are HTML."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>{head}<title>{escape(title)}</title><style>{STYLE}</style></head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def table(
    headings: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[str]],
    *,
    text: Sequence[int] = (),
    sum_row: bool = False,
) -> str:
    """A table that scrolls sideways where it must.

    Args:
        headings: (heading, explanation shown on hover).
        rows: cells as text; a cell may be `Html`.
        text: columns that are aligned to the left.
        sum_row: the last row stands out.
    """
    css = [' class="text"' if place in text else "" for place in range(len(headings))]
    head = "".join(
        f'<th{c} title="{escape(note)}">{escape(name)}</th>' for c, (name, note) in zip(css, headings, strict=True)
    )
    body = []
    for place, row in enumerate(rows):
        mark = ' class="sum"' if sum_row and place == len(rows) - 1 else ""
        body.append(f"<tr{mark}>" + "".join(cell(value, c) for value, c in zip(row, css, strict=True)) + "</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


class Marked(str):
    """A cell's text with a CSS class."""

    css: str

    def __new__(cls, text: str, css: str) -> Marked:
        made = super().__new__(cls, text)
        made.css = css
        return made


def cell(value: str, css: str) -> str:
    if isinstance(value, Marked):
        css = f' class="{value.css}"'
    return f"<td{css}>{escape(value)}</td>"


def cards(items: Sequence[tuple[str, str]]) -> str:
    """Large figures: (value, what it is)."""
    inner = "".join(
        f'<div class="card"><b>{escape(value)}</b><span class="soft">{escape(what)}</span></div>'
        for value, what in items
    )
    return f'<div class="cards">{inner}</div>'


def figure(svg: str, caption: str) -> str:
    return f'<figure role="img" aria-label="{escape(caption)}">{svg}<figcaption>{escape(caption)}</figcaption></figure>'


def definitions(items: Sequence[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in items) + "</dl>"


def details(title: str, inner: str, open: bool = False) -> str:
    return f"<details{' open' if open else ''}><summary>{escape(title)}</summary>{inner}</details>"
