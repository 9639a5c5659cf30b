"""Pages of a sweep: its report with parallel coordinates, and a comparison of its points."""

import json
import re

import pytest

pytestmark = pytest.mark.browser
WORDS = (
    *("experiment=tiny", "score.baselines=false", "score.max_tokens=2000", "train.steps=24"),
    *("-m", "optim.lr=1e-3,4e-3,1e-2", "train.seed=1,2"),
)


def test_mlflow_shows_a_sweep_s_report_and_its_points_as_parallel_coordinates(browser, served) -> None:
    said = served.atelier("pretrain", *WORDS)
    assert said.returncode == 0 and "6 of 6 points finished" in said.stdout, said.stdout + said.stderr
    sweep = re.search(r"sweep ([0-9a-f]{12}):", said.stdout)
    report = re.search(r"report +(http\S+/artifacts/report/report.html\S*)", said.stdout)
    assert sweep and report, said.stdout
    browser.page.goto(report[1].replace("/artifacts/report/report.html", ""))
    browser.page.get_by_role("heading", name=f"sweep {sweep[1]}").first.wait_for()
    picture = browser.page.locator("img[src*='parallel.png']").first
    picture.wait_for()
    browser.page.wait_for_function("img => img.naturalWidth > 500", arg=picture.element_handle())
    browser.follow("All points beside each other: parallel coordinates")
    browser.page.get_by_text("Parallel Coordinates", exact=False).first.wait_for()
    browser.page.locator(".parcoords, .js-plotly-plot").first.wait_for()
    for key in ("optim.lr", "train.seed"):
        browser.page.get_by_text(key).first.wait_for()
    browser.shot("sweep-mlflow")
    plot = re.search(r"plot +(http\S+)", said.stdout)
    assert plot, said.stdout
    browser.page.goto("about:blank")
    browser.page.goto(plot[1])
    browser.page.get_by_text("optim.lr vs. model.eval_loss").first.wait_for()
    browser.page.locator(".scatterlayer path").first.wait_for()
    browser.shot("sweep-plot")
    points = [json.loads(path.read_text()) for path in served.root.glob("sweeps/*/points/*.json")]
    assert len(points) == 6
