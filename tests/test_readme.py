"""What the README shows is run: every ``multitoken`` command and every Python block, on the bundled model.

``make`` targets are checked to exist but not run, since they would run this test again.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from multitoken.cli import main
from multitoken.cli.flags import default_text
from multitoken.methods import available

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
MAKE_TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = "".join(blocks("bash")).replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


COMMANDS = commands()


def test_every_command_is_of_a_kind_that_is_checked():
    kinds = {shlex.split(line)[0] for line in COMMANDS}
    assert {"make", "multitoken"} <= kinds <= {"make", "multitoken", "pip"}


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("make ")])
def test_make_targets_exist(line):
    assert shlex.split(line)[1] in MAKE_TARGETS


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("multitoken ")])
def test_commands_run(line, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Name a fruit."}\n{"prompt": "Name a bird."}\n', "utf-8")
    code = main(shlex.split(line)[1:])
    out, err = capfd.readouterr()
    assert code == 0, err
    assert out.strip() or "--out" in line


@pytest.mark.parametrize("block", blocks("python"))
def test_python_blocks_run(block, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "__readme__"})
    assert capfd.readouterr().out.strip()


def test_local_links_lead_somewhere():
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if not target.startswith(("http://", "https://")):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_index_leads_to_every_page():
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages == {target for target in re.findall(r"\]\(([^)]+)\)", index) if target.endswith(".md")}
    assert "(docs/api.md)" in README and "(docs/benchmark.md)" in README


@pytest.mark.parametrize("name", [name for name, cls in available().items() if cls.Options.model_fields])
def test_options_in_the_documentation_are_those_of_the_method(name):
    page = (ROOT / "docs" / "methods.md").read_text("utf-8")
    section = page.split(f"### {name}\n")[1].split("\n#")[0]
    fields = available()[name].Options.model_fields.items()
    expected = [(key, default_text(field.get_default(call_default_factory=True))) for key, field in fields]
    assert re.findall(r"^\| `(\w+)` \| (.*?) \|", section, flags=re.MULTILINE) == expected
