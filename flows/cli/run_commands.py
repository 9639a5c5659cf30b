"""A command, and the commands about runs; flows/cli/command_list.py has the others."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """`--flag`, or `--flag VALUE` if `value` is set."""

    flag: str
    about: str
    value: str = ""
    many: bool = False


@dataclass(frozen=True)
class Word:
    """A positional argument; `kind` selects its completion: flow, group, model, run, task, anything,
    override."""

    name: str
    about: str
    kind: str
    required: bool = False
    many: bool = False


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: its name, help, example, positional arguments and options."""

    name: str
    about: str
    example: str
    words: tuple[Word, ...] = ()
    options: tuple[Option, ...] = ()

    @property
    def usage(self) -> str:
        dots = {True: " ...", False: ""}
        words = [(f"<{w.name}>" if w.required else f"[{w.name}]") + dots[w.many] for w in self.words]
        options = [f"[{o.flag}{' ' + o.value if o.value else ''}]" for o in self.options]
        return " ".join(["atelier", self.name, *words, *options])


JSON = Option("--json", "print JSON instead of a table")
RUN_COMMANDS = (
    Command(
        name="runs",
        about="list runs: when they ran, how they ended, what they made and reused; with an id, that run's"
        " models, scores, report and pages",
        example="atelier runs 20261129-064500-1a2b3c",
        words=(Word("id", "a run's id, or its first or last characters", "anything"),),
        options=(JSON, Option("--all", "all runs, not the last 20")),
    ),
    Command(
        name="logs",
        about="print what the tasks of a run said, each line with its task; with -f until the run ends",
        example="atelier logs 20261129-064500-1a2b3c train -f",
        words=(
            Word(
                "what",
                "a run: its id, the first or last characters of it, or its name; <run>/<task>; or a task (of"
                " the newest run that has it)",
                "run",
                required=True,
            ),
            Word("task", "a task of the run, or the name of what it makes [all tasks]", "task"),
        ),
        options=(
            Option("-f", "follow: print new lines until the run ends; Ctrl-C stops reading only"),
            Option("--follow", "the same as -f"),
            Option("--rank", "what this rank printed itself, also outside Atelier's messages", "N"),
            Option("--json", "print JSON lines"),
        ),
    ),
    Command(
        name="cancel",
        about="stop a run at its next step, with checkpoints, so that its command continues it; also a run in"
        " a queue",
        example="atelier cancel 20261129-064500-1a2b3c",
        words=(
            Word(
                "run",
                "a run: its id, the first or last characters of it, or its name; in a queue also its id or"
                " page in Prefect",
                "run",
                required=True,
            ),
        ),
        options=(Option("--no-wait", "do not wait until the run has ended"), JSON),
    ),
    Command(
        name="open",
        about="open the page of a run in Prefect or MLflow, or of a model in MLflow, and print its address",
        example="atelier open student_a",
        words=(Word("what", "a run (id or name), or a model", "anything", required=True),),
        options=(
            Option(
                "--page",
                "prefect, mlflow or report of a run; registered or model of a model [the first that answers]",
                "NAME",
            ),
            Option("--json", "print JSON, and open nothing"),
        ),
    ),
    Command(
        name="debug",
        about="run a task of a past run again by one process under Python's debugger, from its last"
        " checkpoint; it changes nothing in the store",
        example="atelier debug 20261129-064500-1a2b3c train --break loop.step.train_step",
        words=(
            Word(
                "run",
                "a run: its id, the first or last characters of it, its name; or <run>/<task>",
                "run",
                required=True,
            ),
            Word("task", "a task of the run, or the name of what it makes", "task"),
        ),
        options=(
            Option(
                "--break",
                "stop there: FILE:LINE, or a function below engine, as in loop.step.train_step [at an error]",
                "WHERE",
                many=True,
            ),
            Option("--start", "stop before the first line"),
            Option("--step", "from the checkpoint at or before this step; 0 = from the start", "N"),
            Option("--cpu", "on the CPU, whatever the run used"),
            Option("--json", "print what would run, as JSON, and run nothing"),
        ),
    ),
    Command(
        name="watch",
        about="examine the checkpoints of a training on evaluation sets as they are written, until it ends",
        example="atelier watch student_a mytask.yaml --every 2",
        words=(
            Word(
                "what", "a run, a role of one, a model, or digits of a trajectory", "anything", required=True
            ),
            Word(
                "set",
                "evaluation sets: .yaml or .jsonl files, or names of conf/questions; also key=value of the"
                " flow watch",
                "file",
                required=True,
                many=True,
            ),
        ),
        options=(
            Option("--every", "examine every n-th checkpoint, and the last one [1]", "N"),
            Option("--once", "examine those that are there now, and end"),
            Option("--json", "print JSON lines"),
        ),
    ),
)
