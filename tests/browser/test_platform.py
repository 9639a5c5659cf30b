"""Use of the pages by a person: fill a form, watch, cancel, compare, find the teacher."""

import os
import re

import pytest

from tests.flow.served import wait_for

pytestmark = pytest.mark.browser
SOON_S = 15
SHOWN = os.environ.get("ATELIER_SHOWN", "tiny")  # the experiment that runs


def test_a_bad_number_is_refused_at_its_field(browser) -> None:
    browser.open_form("pretrain")
    browser.fill("train.steps", "-4")
    browser.page.get_by_role("button", name="Submit").click()
    steps = browser.page.get_by_label("train.steps").first
    assert "greater than or equal to 0" in steps.evaluate("field => field.validationMessage")
    assert browser.page.url.split("?")[0].endswith("/run")


def test_the_forms_first_screen_has_ten_fields_with_the_rest_in_one_group(browser) -> None:
    browser.open_form("distill")
    group = browser.page.get_by_text("advanced", exact=False).first
    group.wait_for()
    fields = browser.page.get_by_text("Default:", exact=False).count()
    assert fields >= 20  # each says what blank means
    for label in ("experiment", "pool", "train.steps", "score.controls"):
        assert browser.page.get_by_label(label).first.bounding_box()["y"] < group.bounding_box()["y"], label
    browser.shot("form")


def test_a_run_keeps_the_name_that_its_owner_gave(browser, served) -> None:
    browser.open_form("corpus")
    browser.page.locator("input").first.fill("my first corpus")
    run = browser.submit()
    assert served.wait_final(run, 600)["type"] == "COMPLETED"
    assert served.api("GET", f"/flow_runs/{run}")["name"] == "my first corpus"


def test_every_printed_address_of_mlflow_opens_the_view_of_training_runs(browser, served) -> None:
    printed = served.atelier("status").stdout
    address = re.search(rf"{re.escape(served.mlflow)}\S*", printed)
    assert address, printed
    for url in (address[0], served.mlflow):
        browser.page.goto("about:blank")
        browser.page.goto(url)
        browser.page.get_by_role("link", name="Default", exact=True).first.click()
        browser.page.wait_for_url("**/runs?workflowType=machine_learning*")
        assert browser.page.get_by_text("Ask a question").count() == 0  # no assistant over the page


def test_a_run_of_the_form_completes_and_shows_overview_plan_and_report(browser, served) -> None:
    browser.open_form("titan")
    browser.select("experiment", SHOWN)
    browser.fill("train.seed", "3")
    browser.page.get_by_role("button", name="Add item").click()
    browser.page.locator("//button[normalize-space()='Add item']/preceding::textarea[1]").fill(
        "finetune.epochs=1"
    )
    run = browser.submit()
    wait_for(lambda: overview(served, run), 120, "the plan on the run's page")
    first = overview(served, run)
    assert "about" in first and "GB of memory" in first and "| train | to come |" in first, first
    assert served.wait_final(run, 3000)["type"] == "COMPLETED"
    parameters = served.api("GET", f"/flow_runs/{run}")["parameters"]
    given = {"experiment": SHOWN, "pool": "local", "train_seed": 3}
    assert parameters.pop("advanced") == {"overrides": ["finetune.epochs=1"]}
    assert {key: parameters[key] for key in given} == given
    browser.open_run(run)
    browser.page.get_by_text("Completed").first.wait_for()
    browser.open_run(run, "Artifacts")
    for key in ("overview", "plan", "report"):
        browser.page.get_by_text(key, exact=True).first.wait_for()
    browser.shot("prefect-run")
    browser.page.locator("a[href*='/artifacts/']", has_text="report").last.click()
    browser.page.locator("a[href*='/artifacts/artifact/']").first.click()
    browser.page.get_by_text("bits/byte").first.wait_for()
    browser.page.locator("img[src^='data:image/png']").first.wait_for()
    text = overview(served, run)
    assert "| train | done |" in text, text
    links = dict(re.findall(r"\[([^\]]+)\]\((http[^)]+)\)", text))
    assert {"curves of this run", "this run in MLflow", "all models in MLflow", "report"} <= set(links)
    browser.page.goto(links["all models in MLflow"])
    for name in ("student_a", "teacher"):
        browser.page.get_by_role("link", name=re.compile(f"^{name}( |$)")).first.wait_for()
    browser.page.get_by_text("score/loss").first.wait_for()
    browser.shot("mlflow-models")


def overview(served, run: str) -> str:
    """The text of the run's overview; '' before there is one."""
    body = {"flow_runs": {"id": {"any_": [run]}}, "artifacts": {"key": {"any_": ["overview"]}}}
    found = served.api("POST", "/artifacts/filter", body)
    return found[0]["data"] if found else ""


def test_mlflow_shows_the_curves_of_two_runs_and_the_way_from_student_to_teacher(browser, served) -> None:
    student = f"{served.mlflow}/#/models/student_a?workflowType=machine_learning"
    browser.page.goto(student)
    browser.page.get_by_text(re.compile(r"student of assistant @ steps \d+-\d+")).first.wait_for()
    browser.page.locator("img[src*='get-artifact']").first.wait_for()
    browser.shot("mlflow-student")
    browser.follow("curves of this run")
    browser.page.get_by_text("eval/loss").first.wait_for()
    for name in ("student_a", "assistant", "teacher"):
        browser.page.get_by_role("link", name=re.compile(f"^{name}( |$)")).first.wait_for()
    browser.page.locator("path.js-line, .scatterlayer path").first.wait_for()
    browser.shot("mlflow-compare")
    browser.page.goto(student)
    browser.follow("assistant")
    browser.page.get_by_text(re.compile("teaches student_a, student_b")).first.wait_for()
    browser.follow("student_b")
    browser.page.get_by_text(re.compile(r"student of assistant @ steps")).first.wait_for()


def test_cancel_on_the_page_ends_every_process_of_the_gang_and_leaves_a_checkpoint(browser, served) -> None:
    words = ["train.steps=100000", "tracker=none"]
    run = served.submit("pretrain", experiment="tiny", train_seed=77, overrides=words)
    checkpoints = served.root / "trajectory"
    before = set(checkpoints.glob("*/checkpoints/step-*"))
    wait_for(lambda: set(checkpoints.glob("*/checkpoints/step-*")) - before, 120, "a checkpoint")
    browser.open_run(run)
    browser.page.get_by_text("Running").first.wait_for()
    browser.page.get_by_role("button", name="Open menu").first.click()
    browser.page.get_by_role("menuitem", name="Cancel").click()
    browser.page.get_by_role("button", name=re.compile("Cancel run|Cancel")).last.click()
    wait_for(lambda: not served.ranks(), SOON_S, "the end of all processes of the gang")
    assert served.wait_final(run, 60)["type"] == "CANCELLED"
    assert set(checkpoints.glob("*/checkpoints/step-*")) - before
