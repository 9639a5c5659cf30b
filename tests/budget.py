"""Plugin: what tests cost, and a budget for quick ones: 2 s a test (without its fixtures), 12 s a file.

The cost of a test is the processor time of its process and of its finished child processes. Other work on the
machine changes it by a third, and the first test that imports a library pays for the import. Environment:
ATELIER_BUDGET=1 lists costs over the budget, except those in over_budget.txt, and fails a session with one
over twice its budget; ATELIER_COSTS=FILE writes all costs; ATELIER_SHUFFLE=SEED shuffles files, and the tests
within each, but for those of a file with IS_STORY, which follow the life of one store.
"""

import os
import random
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

TEST_S, FILE_S, SLACK = 2.0, 12.0, 2.0
KNOWN = Path(__file__).with_name("over_budget.txt")
ENGINE = Path(__file__).with_name("engine")
BEFORE = pytest.StashKey[float]()
tests, files = Counter[str](), Counter[str]()  # seconds


def spent() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    now = spent()
    report.user_properties.append((report.when, now - item.stash.get(BEFORE, now)))
    item.stash[BEFORE] = now
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[BEFORE] = spent()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    cost = next((value for when, value in reversed(report.user_properties) if when == report.when), 0.0)
    files[report.nodeid.split("::")[0]] += float(cost)
    if report.when == "call":
        tests[report.nodeid] += float(cost)


def over_budget(slack: float = 1.0) -> list[str]:
    """`seconds name` of what costs more than `slack` times its budget and is not known to."""
    known = {line.split(maxsplit=1)[1] for line in KNOWN.read_text().splitlines() if line[:1].isdigit()}
    found = [(cost, name) for name, cost in tests.items() if cost > slack * TEST_S]
    found += [(cost, name) for name, cost in files.items() if cost > slack * FILE_S]
    return [f"{cost:.1f} {name}" for cost, name in sorted(found, reverse=True) if name not in known]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if path := os.environ.get("ATELIER_COSTS"):
        costs = [f"{cost:.2f} {name}" for name, cost in (files | tests).most_common()]
        Path(path).write_text("\n".join(costs) + "\n")
    if os.environ.get("ATELIER_BUDGET") and not hasattr(session.config, "workerinput") and over_budget(SLACK):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if os.environ.get("ATELIER_BUDGET") and (found := over_budget()):
        terminalreporter.section(f"over the budget of {TEST_S:.0f} s a test and {FILE_S:.0f} s a file")
        terminalreporter.write_line("\n".join(found))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if seed := os.environ.get("ATELIER_SHUFFLE"):
        draw = random.Random(seed)
        print(f"ATELIER_SHUFFLE={seed}")
        places = {name: draw.random() for name in dict.fromkeys(str(item.path) for item in items)}
        order = {item.nodeid: number for number, item in enumerate(items)}
        draw.shuffle(items)
        stories = {
            str(item.path) for item in items if getattr(getattr(item, "module", None), "IS_STORY", False)
        }
        items.sort(key=lambda i: (places[str(i.path)], order[i.nodeid] if str(i.path) in stories else 0))
    else:  # the cheap files of the engine last, so that all workers end at about the same time
        items.sort(key=lambda item: item.path.is_relative_to(ENGINE))
