"""Every command of README, CONTRIBUTING and docs is run as a reader types it, page by page: in a clone, with
what `make setup` installs, in a store of the page's own. What this machine cannot run is in ELSEWHERE. Flows
are run at the size of `experiment=tiny` (tests/flow/small.py); plans are run as they are.
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.checkout import TOP
from tests.flow.reader import Machine, Reader

PAGES = [*sorted((TOP / "docs").rglob("*.md")), TOP / "README.md", TOP / "CONTRIBUTING.md"]
FENCED = re.compile(r"(?ms)^( *)```(\w*)\n(.*?)^ *```$")
QUOTED = re.compile(r"`([^`]+)`")
PROGRAM = (
    r"(?:make|python3?|pytest|(?:\.venv/bin/)?pip|prefect|docker-compose|kubectl|ssh|eval(?= \")|[A-Z_]+=\S+)"
)
TYPED = re.compile(rf"(?:atelier [a-z]+|{PROGRAM}) \S|infra/docker/\w+$")  # `atelier gc` is a name
HIDDEN = re.compile(rf"(?: {{4,}}|\$ )(?:\$ )?(?:atelier|{PROGRAM}) \S")

# patterns of what is run with a stack; `down` ends it, on whichever page it stands
STACK = (
    "atelier up",
    "atelier status",
    "eval ",
    r"atelier \w+ .*pool=local",
    "prefect deploy",
    "atelier down",
)

# pattern of a command -> why it is not run here, and the file that runs it, "" where none does
ENDLESS, SLURM = "serves until it is ended", "a cluster of Slurm"
SITE = "waits for the other site"
GIVEN = "needs what the reader puts in"
INDEX, ALL = "asks pip's index", "what a developer starts; this test is a part of it"
ELSEWHERE = {
    "atelier new (model|objective) <name>": ("in a project", "tests/flow/test_own_project.py"),
    "atelier worker <pool>$": (ENDLESS, "tests/service/test_stack.py"),
    "atelier worker gpu": (ENDLESS, "tests/service/test_gpu_page.py"),
    r"atelier pretrain .*pool=gpu": ("a stand-in for GPUs", "tests/service/test_gpu_page.py"),
    "atelier worker slurm": (ENDLESS, "tests/service/test_slurm_served.py"),
    "prefect worker start": (ENDLESS, ""),
    "mlflow models serve": (ENDLESS, "tests/infra/tracking/test_served.py"),
    "curl http://127.0.0.1:5001": ("asks that server", "tests/infra/tracking/test_served.py"),
    "atelier pretrain pool=slurm": (SLURM, "tests/service/test_slurm.py"),
    "atelier pretrain -m hydra/launcher=slurm": (SLURM, "tests/service/test_slurm_array.py"),
    "ATELIER_ROOT=~/[ab] atelier pretrain .*train.link": (SITE, "tests/flow/test_sites.py"),
    "ATELIER_ROOT=~/[ab] atelier distill .*train.link": (SITE, "tests/flow/test_roles_apart.py"),
    r"atelier titan .*\+language=chinese": ("text in Chinese", "tests/flow/test_titan.py"),
    "atelier watch": ("goes on as long as a training", "tests/faults/test_watch.py"),
    "atelier rerun <run>": ("the id of a run", "tests/flow/test_rerun.py"),
    "atelier audit": ("ends with 3 where a question was read", "tests/flow/test_audit.py"),
    "atelier (logs|cancel|debug) ": (GIVEN, "tests/flow/test_verbs.py"),
    "atelier open ": (GIVEN, "tests/service/test_verbs.py"),
    "atelier rm <model>": (GIVEN, "tests/flows/cli/test_rm.py"),
    "atelier site": (SITE, "tests/infra/sites/test_agent.py"),
    "docker-compose --profile gpu": ("docker with GPUs", ""),
    "(PIP_NO_INDEX=1 )?docker-compose build": ("docker", "infra/docker/verify"),
    "docker-compose (--profile tls )?(up|ps)": ("docker", "tests/docker/claims.py"),
    "infra/docker/(backup|restore)": ("docker", "tests/docker/claims.py"),
    "infra/docker/wheels": (INDEX, "infra/docker/verify"),
    "infra/docker/verify": ("docker, as root", ""),
    "kubectl apply": ("a cluster of Kubernetes", ""),
    "ssh -L": ("another machine", ""),
    r"\.venv/bin/pip install": (INDEX, ""),
    "python3 -m venv .venv": (INDEX, ""),
    "pip install -c constraints.txt": (INDEX, "tests/service/test_installed.py"),
    "make (check|test|verify|newest|mutants|soak)": (ALL, ""),
    "pytest tests/parity": (ALL, "tests/verify.sh"),
    "make bench": ("hours", ""),
    "python benchmarks/gpu.py": ("a GPU", ""),
    "python benchmarks/(peers|seeds|goodput|anchors|checkpoint|products)": ("measures alone", "Makefile"),
    "python benchmarks/(structure|fingerprints|moved_code)": ("measures the committed code", ""),
    "python -m atelier.engine.train run.json": ("a rank of a gang", "tests/engine/trainings.py"),
}


@dataclass(frozen=True)
class Command:
    page: str
    line: int
    text: str

    def is_of(self, patterns: tuple[str, ...]) -> bool:
        return any(re.match(pattern, self.text) for pattern in patterns)

    @property
    def is_here(self) -> bool:
        return not self.is_of((*STACK, *ELSEWHERE))


def is_whole(text: str) -> bool:
    """Bash needs no further line: no here-document, quote or bracket is open."""
    text = re.sub(r"<[\w ]+>", "word", text)  # what the reader puts in
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    return not text.endswith("\\\n") and done.returncode == 0 and not done.stderr


def blocks(page: Path) -> list[re.Match[str]]:
    """Blocks of commands: all that have no language. What is printed is `text`."""
    return [found for found in FENCED.finditer(page.read_text()) if found[2] in ("", "sh", "bash")]


def in_blocks(page: Path) -> list[Command]:
    found, name = list[Command](), str(page.relative_to(TOP))
    for block in blocks(page):
        begins, text = page.read_text()[: block.start(3)].count("\n") + 1, ""
        for number, line in enumerate(block[3].splitlines(), begins):
            text += line.removeprefix(block[1]).removeprefix("$ ") + "\n"
            if is_whole(text):
                found += [Command(name, number, text.strip())] if text.strip() else []
                text = ""
        assert not text, f"{name}: these are no commands, nor is the block called text: {text}"
    return found


def in_text(page: Path) -> list[Command]:
    """Commands between words: `atelier gc --dry-run`. Those with dots are forms, not commands."""
    text = FENCED.sub(lambda block: re.sub(r"[^\n]", "", block[0]), page.read_text())
    found = [(quoted, " ".join(quoted[1].split())) for quoted in QUOTED.finditer(text)]
    return [
        Command(str(page.relative_to(TOP)), text[: quoted.start()].count("\n") + 1, words)
        for quoted, words in found
        if TYPED.match(words) and "..." not in words
    ]


BLOCKS = {str(page.relative_to(TOP)): in_blocks(page) for page in PAGES}
SHOWN = {re.sub(r"\s+#.*", "", command.text): command for found in BLOCKS.values() for command in found}
TEXTS = {command.text: command for page in PAGES for command in in_text(page) if command.text not in SHOWN}
READ = [page for page, commands in BLOCKS.items() if any(command.is_here for command in commands)]


def run(reader: Reader, commands: list[Command]) -> None:
    """All of them, whichever fail; each has to end with 0."""
    said = ""
    for command in commands:
        done = reader(command.text)
        if done.returncode:
            said += f"{command.page}:{command.line}: {command.text}\nended with {done.returncode}\n"
            said += f"{done.stdout}{done.stderr}\n"
    assert not said, said


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    machine = Machine(tmp_path_factory.mktemp("documented"))
    yield machine
    machine.prefect.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", READ)
def test_the_commands_of_a_page_run_in_its_order(machine: Machine, page: str) -> None:
    clones = any("git clone" in command.text for command in BLOCKS[page])
    run(machine.reader(page, clones), [command for command in BLOCKS[page] if command.is_here])


@pytest.mark.slow
def test_the_commands_in_running_text_run_in_a_store_with_a_sweep(machine: Machine) -> None:
    reader = machine.reader("running text")
    sweep = Command("running text", 0, "atelier pretrain -m train.seed=1,2")
    run(reader, [sweep, *(command for command in TEXTS.values() if command.is_here)])


@pytest.mark.service
@pytest.mark.slow
def test_the_commands_that_need_a_stack_run_with_one(machine: Machine) -> None:
    reader = machine.reader("stack", has_server=False)
    needing = {text: command for text, command in (SHOWN | TEXTS).items() if command.is_of(STACK)}
    up, down = needing.pop("atelier up"), needing.pop("atelier down")
    try:
        run(reader, [up, *needing.values()])
    finally:
        run(reader, [down])


@pytest.mark.parametrize("pattern", [*STACK, *ELSEWHERE])
def test_what_is_not_run_on_its_page_stands_on_one_and_who_runs_it_exists(pattern: str) -> None:
    assert any(re.match(pattern, text) for text in SHOWN | TEXTS)
    _why, run_by = ELSEWHERE.get(pattern, ("", ""))
    assert (TOP / run_by).exists()


@pytest.mark.parametrize("page", BLOCKS)
def test_no_command_stands_where_it_is_not_run(page: str) -> None:
    text = (TOP / page).read_text()
    for block in reversed(blocks(TOP / page)):
        text = text[: block.start()] + text[block.end() :]
    assert [line for line in text.splitlines() if HIDDEN.match(line)] == []
