"""A newcomer starts `atelier up` and compares two runs within five minutes and twelve clicks."""

import re
import time

import pytest

from tests.flow.served import wait_for

pytestmark = pytest.mark.browser
MOST_CLICKS, MOST_S = 12, 300


def test_two_runs_are_compared_within_five_minutes_and_twelve_clicks(browser, served) -> None:
    page, clicks, begin = browser.page, 0, time.monotonic()

    def click(target) -> None:
        nonlocal clicks
        target.click()
        clicks += 1

    def final() -> list[str]:
        body = {"flows": {"name": {"any_": ["pretrain"]}}}
        found = served.api("POST", "/flow_runs/filter", body)
        return [run["state"]["type"] for run in found]

    click(page.get_by_role("link", name="Deployments", exact=True).first)
    page.get_by_placeholder("Search deployments", exact=True).fill("pretrain")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="pretrain", exact=True))
    click(row.get_by_role("link", name="atelier", exact=True))
    for number, rate in enumerate(("0.01", "0.02"), 1):
        click(page.get_by_role("button", name="Run").first)
        click(page.get_by_role("menuitem", name="Custom run"))
        page.get_by_label("experiment").wait_for()
        browser.fill("optim.lr", rate)
        click(page.get_by_role("button", name="Submit"))
        wait_for(lambda number=number: len(final()) == number, 30, "the run of the form")
    wait_for(lambda: final() == ["COMPLETED"] * 2, MOST_S, "the end of both runs")
    printed = re.search(rf"{re.escape(served.mlflow)}\S*", served.atelier("status").stdout)
    assert printed
    page.goto(printed[0])
    click(page.get_by_role("link", name="pretrain", exact=True).first)
    page.get_by_role("link", name=re.compile("pretrain tiny")).first.wait_for()
    boxes = page.locator(".ag-row .ag-selection-checkbox:visible")
    boxes.first.wait_for()
    click(boxes.nth(0))
    click(boxes.nth(1))
    click(page.get_by_role("button", name="Compare"))
    page.get_by_text("Comparing 2 Runs").first.wait_for()
    for rate in ("0.01", "0.02"):
        page.get_by_text(rate, exact=True).first.wait_for()
    page.get_by_text("model/loss").first.wait_for()
    browser.shot("mlflow-two-runs")
    took = time.monotonic() - begin
    print(f"{clicks} clicks, {took:.0f} s from the first page to two runs beside each other")
    assert clicks <= MOST_CLICKS and took <= MOST_S
