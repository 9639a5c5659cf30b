"""A stack and a signed-in browser: Debian's chromium, driven by playwright. Screenshots go to ATELIER_SHOTS,
if that is set. The pictures of docs/ are these:

    ATELIER_SHOTS=docs/pictures ATELIER_SHOWN=laptop python -m pytest tests/browser
"""

import os
import shutil
from collections.abc import Generator, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.flow.served import Served, running

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with running(tmp_path_factory.mktemp("browser") / "store") as stack:
        yield stack


@pytest.fixture(scope="module")
def browser(served: Served) -> Iterator["Browser"]:
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        credentials = {"username": "atelier", "password": served.password, "origin": served.mlflow}
        context = chromium.new_context(viewport={"width": 1680, "height": 1100}, http_credentials=credentials)
        context.set_default_timeout(120_000)  # of a busy machine
        yield Browser(context.new_page(), served)
        chromium.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Screenshot of the page after a failed test."""
    report = yield
    browser = getattr(item, "funcargs", {}).get("browser")
    if report.when == "call" and report.failed and browser:
        browser.shot(f"failed-{item.name}")
    return report


class Browser:
    """One tab, signed in to both pages."""

    def __init__(self, page, served: Served) -> None:
        self.page, self.served = page, served
        page.goto(served.prefect)
        page.get_by_role("textbox").or_(page.locator("input")).first.fill(f"atelier:{served.password}")
        page.keyboard.press("Enter")
        page.wait_for_url("**/dashboard*")

    def open_form(self, flow: str) -> None:
        """Open the form of a flow's custom run, as a user does."""
        self.page.goto(f"{self.served.prefect}/v2/deployments")
        self.page.get_by_placeholder("Search deployments", exact=True).fill(flow)  # there are ten on a page
        row = self.page.get_by_role("row").filter(has=self.page.get_by_role("link", name=flow, exact=True))
        # a click on a row of the list before it is searched is lost
        # wait for the list that the search leaves: a click on a row of the one before is lost
        rows = self.page.get_by_role("link", name="atelier", exact=True)
        playwright.expect(rows).to_have_count(1, timeout=120_000)
        row.get_by_role("link", name="atelier", exact=True).click()
        self.page.wait_for_url("**/deployments/deployment/**")
        self.page.get_by_role("button", name="Run").click()
        self.page.get_by_role("menuitem", name="Custom run").click()
        self.page.get_by_label("experiment").wait_for()

    def select(self, label: str, option: str) -> None:
        self.page.get_by_label(label).first.click()
        self.page.get_by_role("option", name=option, exact=True).click()

    def fill(self, label: str, text: str) -> None:
        self.page.get_by_label(label).first.fill(text)

    def submit(self) -> str:
        """Send the form; the id of the run that it started."""
        self.page.get_by_role("button", name="Submit").click()
        link = self.page.locator("a[href*='/flow-run/']").first
        link.wait_for()
        return str(link.get_attribute("href")).split("/flow-run/")[1].split("?")[0]

    def follow(self, name: str) -> None:
        """Click a link; where it opens a tab of its own, go on there."""
        link = self.page.get_by_role("link", name=name, exact=True).first
        link.wait_for()
        if link.get_attribute("target") != "_blank":
            link.click()
            return
        with self.page.context.expect_page() as opened:
            link.click()
        self.page = opened.value

    def open_run(self, run_id: str, tab: str = "") -> None:
        where = f"{self.served.prefect}/v2/runs/flow-run/{run_id}"
        self.page.goto(f"{where}?tab={tab}" if tab else where)

    def shot(self, name: str) -> None:
        """The page without the menu at its left, in few colours."""
        folder = os.environ.get("ATELIER_SHOTS")
        if not folder:
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        main = self.page.locator("main").first
        whole = self.page.screenshot()
        picture = Image.open(BytesIO(whole)).convert("RGB")
        box = main.bounding_box() if main.count() else None
        if box is not None:
            left, top = max(0, int(box["x"])), max(0, int(box["y"]))
            right, low = min(picture.width, int(box["x"] + box["width"])), picture.height
            picture = picture.crop((left, top, right, low))
        picture.quantize(64).save(f"{folder}/{name}.png", optimize=True)
