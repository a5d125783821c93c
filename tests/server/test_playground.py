"""The page in a real browser: type, run both panes, read colours and figures, stop, change the method, reload."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from serving import Running, running, wait_for

selenium = pytest.importorskip("selenium", reason="selenium is not installed (pip install 'multitoken[dev]')")

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no chromium with its driver (Debian: apt install chromium chromium-driver)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    made = open_browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.quit()


def open_browser(profile: Path, size: str = "1360,900") -> Chrome:
    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={size}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Chrome(options=options, service=Service(str(DRIVER)))


@pytest.fixture(scope="module")
def served(tiny) -> Iterator[Running]:
    with running(tiny, method="pld") as made:
        yield made


@pytest.fixture
def page(browser: Chrome, served: Running) -> Page:
    made = Page(browser, served)
    made.open()
    return made


class Page:
    """The page as a user sees it."""

    def __init__(self, browser: Chrome, server: Running):
        self.browser, self.server = browser, server

    def open(self) -> None:
        self.browser.get(f"{self.server.url}/version")  # the page itself would store its settings again
        self.browser.execute_script("localStorage.clear(); sessionStorage.clear()")
        self.reload()

    def reload(self) -> None:
        self.browser.get(self.server.url)
        wait_for(lambda: self.find("#method option"))

    def find(self, selector: str) -> list[Any]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> Any:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def fill(self, name: str, text: str) -> None:
        field = self.one(f"[name='{name}']")
        field.clear()
        field.send_keys(text)

    def pane(self, place: int) -> Any:
        return self.find(".pane")[place]

    def states(self) -> list[str]:
        return [pane.get_attribute("data-state") for pane in self.find(".pane")]

    def figure(self, place: int, name: str) -> str:
        return self.pane(place).find_element(By.CSS_SELECTOR, f"[data-figure='{name}']").text

    def text(self, place: int) -> str:
        return self.pane(place).find_element(By.CSS_SELECTOR, ".output").get_property("textContent")

    def run(self, prompt: str = "ab ab ab ab ab ab") -> None:
        self.fill("prompt", prompt)
        self.one("[name='prompt']").send_keys(Keys.CONTROL, Keys.ENTER)
        wait_for(lambda: self.states() == ["done", "done"], 30)


def test_both_panes_answer_with_colours_and_figures(page: Page):
    page.fill("max_tokens", "60")
    page.run()
    with page.server.client() as client:
        body = {"messages": [{"role": "user", "content": "ab ab ab ab ab ab"}], "max_tokens": 60, "temperature": 0}
        choice = client.post("/v1/chat/completions", json={**body, "method": "pld", "spans": True}).json()["choices"][0]
    answer, spans = choice["message"]["content"], choice["spans"]
    assert page.text(0) == page.text(1) == answer
    assert "same text" in page.one("#verdict").text
    assert page.figure(0, "tau") == "1.00"
    assert page.figure(1, "tau") == f"{sum(spans[1:]) / len(spans[1:]):.2f}"
    assert page.figure(1, "tokens") == str(sum(spans)) and page.figure(1, "forwards") == str(len(spans) - 1)
    assert float(page.figure(0, "speed")) > 0
    pieces = page.pane(1).find_elements(By.CSS_SELECTOR, ".output .span")
    colours = [piece.value_of_css_property("background-color") for piece in pieces]
    assert len(set(colours)) > 3 and all(a != b for a, b in pairwise(colours))
    tips = [piece.get_attribute("data-tip") for piece in pieces]
    assert any(tip.startswith(f"{max(spans)} token") for tip in tips)
    bars = page.pane(1).find_element(By.CSS_SELECTOR, ".bars").get_attribute("aria-label")
    assert f"{spans[1:].count(1)} of 1" in bars


def test_hovering_tells_the_span(page: Page):
    from selenium.webdriver import ActionChains

    page.fill("max_tokens", "20")
    page.run()
    piece = page.pane(0).find_elements(By.CSS_SELECTOR, ".output .span")[1]
    ActionChains(page.browser).move_to_element(piece).perform()
    wait_for(lambda: page.one("#tip").is_displayed())
    assert page.one("#tip").text.startswith("1 token · forward")


def test_escape_stops_and_the_server_lets_go(page: Page):
    import time

    session = page.server.state.worker._session
    step = session.step
    session.step = lambda: (time.sleep(0.05), step())[1]  # type: ignore[method-assign]
    try:
        page.fill("max_tokens", "200")
        page.fill("prompt", "go on")
        page.one("#run").click()
        wait_for(lambda: page.server.state.worker.active == 2)
        wait_for(lambda: all(page.figure(place, "tokens") != "–" for place in (0, 1)))
        page.one("body").send_keys(Keys.ESCAPE)
        wait_for(lambda: page.states() == ["stopped", "stopped"])
        wait_for(lambda: page.server.state.worker.idle, 2)
    finally:
        session.step = step  # type: ignore[method-assign]
    assert page.one("#run").is_enabled() and not page.one("#stop").is_enabled()


def test_the_method_and_its_options_can_be_changed_and_survive_a_reload(page: Page):
    Select(page.one("#method")).select_by_value("lookahead")
    page.one("#options-box summary").click()
    names = {field.get_attribute("name") for field in page.find("#options [name]")}
    with page.server.client() as client:
        methods = {method["name"]: method for method in client.get("/methods").json()["methods"]}
    assert names == {f"method_options.{name}" for name in methods["lookahead"]["options"]["properties"]}
    option = next(name for name in methods["lookahead"]["options"]["properties"] if name == "window")
    page.fill(f"method_options.{option}", "3")
    page.fill("max_tokens", "20")
    page.run()
    assert page.pane(1).find_element(By.CSS_SELECTOR, ".name").text == "lookahead"
    assert page.text(0) == page.text(1)
    page.reload()
    assert page.one("#method").get_property("value") == "lookahead"
    assert page.one(f"[name='method_options.{option}']").get_property("value") == "3"
    assert page.one("[name='prompt']").get_property("value") == "ab ab ab ab ab ab"
    Select(page.one("#method")).select_by_value("pld")
    Select(page.one("#method")).select_by_value("lookahead")
    assert page.one(f"[name='method_options.{option}']").get_property("value") == "3"


def test_a_refused_option_is_shown_at_its_field(page: Page):
    Select(page.one("#method")).select_by_value("probe")
    page.one("#options-box summary").click()
    page.fill("method_options.block_size", "100000")
    page.fill("prompt", "x")
    page.one("#run").click()
    wait_for(lambda: page.states()[1] == "failed")
    assert "block_size" in page.text(1)
    assert page.one("[name='method_options.block_size']").get_attribute("aria-invalid") == "true"


def test_a_conversation_goes_on_and_texts_need_no_template(page: Page):
    page.fill("max_tokens", "8")
    page.run("first")
    page.one("#keep").click()
    assert len(page.find("#conversation li")) == 2
    page.run("second")
    page.one("#forget").click()
    assert not page.find("#conversation li")
    page.browser.execute_script("document.querySelector('[name=mode][value=text]').click()")
    page.run("plain text")
    with page.server.client() as client:
        body = {"prompt": "plain text", "max_tokens": 8, "temperature": 0}
        assert page.text(1) == client.post("/v1/completions", json=body).json()["choices"][0]["text"]


def test_themes_and_phone_width(page: Page):
    def background() -> str:
        return page.one("body").value_of_css_property("background-color")

    light = background()
    page.one("#theme-button").click()
    dark = background()
    assert light != dark
    page.reload()
    assert background() == dark
    page.browser.set_window_size(500, 900)  # the narrowest that a window of Chromium can be
    try:
        width, inner = page.browser.execute_script(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert width <= inner
        tops = [pane.rect["y"] for pane in page.find(".pane")]
        assert tops[0] < tops[1]
    finally:
        page.browser.set_window_size(1360, 900)


def test_every_control_has_a_name(page: Page):
    unnamed = page.browser.execute_script(
        """return [...document.querySelectorAll("button, input, select, textarea")].filter((control) =>
             !(control.labels?.length || control.getAttribute("aria-label") || control.textContent.trim())
           ).map((control) => control.outerHTML)"""
    )
    assert unnamed == []


def test_nothing_is_asked_of_other_machines_and_the_console_is_clean(page: Page):
    import json

    page.fill("max_tokens", "8")
    page.browser.get_log("performance")
    page.reload()
    page.run()
    messages = [json.loads(entry["message"])["message"] for entry in page.browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert urls and all(url.startswith((page.server.url, "data:")) for url in urls)
    page.browser.get_log("browser")
    page.reload()
    assert [entry for entry in page.browser.get_log("browser") if entry["level"] == "SEVERE"] == []
