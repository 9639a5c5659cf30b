"""Sources of evaluation sets: tasks of lm-evaluation-harness 0.4.13, files of rows, and probes. Torch-free.

All are documents: a task as its YAML says, a file of rows with the settings beside it. Keys and defaults of
a task are lm-eval's. Probe `templates` is engine/config/probe/templates.py.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field, SerializeAsAny

from atelier.engine.config.base import Count, Json, JsonObject, Kind, Spec, parse
from atelier.engine.config.direction import Direction
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.evaluation_set import Metric, QuestionKind
from atelier.engine.config.registry import KindChooser

# engine/data/evaluation/<form>_questions.py; corpus: held_out.py, answered: answered.py
Form = Literal["task", "row", "corpus", "answered"]
OutputType = Literal["multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until"]
KINDS: dict[OutputType, QuestionKind] = {
    "multiple_choice": "choice",
    "loglikelihood": "cloze",
    "loglikelihood_rolling": "text",
    "generate_until": "free",
}
# lm-eval's metrics of each kind: aggregation and direction
METRICS: dict[QuestionKind, dict[str, tuple[str, Direction]]] = {
    "choice": {
        "acc": ("mean", "maximize"),
        "acc_norm": ("mean", "maximize"),
        "acc_bytes": ("mean", "maximize"),
    },
    "cloze": {"perplexity": ("perplexity", "minimize"), "acc": ("mean", "maximize")},
    "text": {
        "word_perplexity": ("weighted_perplexity", "minimize"),
        "byte_perplexity": ("weighted_perplexity", "minimize"),
        "bits_per_byte": ("bits_per_byte", "minimize"),
    },
    "free": {
        "exact_match": ("mean", "maximize"),
        "bleu": ("bleu", "maximize"),
        "chrf": ("chrf", "maximize"),
    },
    "valued": {},  # a set of ours; lm-eval has none
}
USUAL = {
    "choice": ("acc", "acc_norm"),
    "cloze": ("perplexity", "acc"),
    "text": tuple(METRICS["text"]),
    "free": ("exact_match",),
    "valued": (),
}
MOST_TOKENS = 256  # lm-eval's default of max_gen_toks
WITHOUT_MEANING = (  # keys of a task that change nothing of what is asked
    "tag", "group", "group_alias", "task_alias", "version", "metadata", "should_decontaminate",
    "doc_to_decontamination_query",
)  # fmt: skip
SLICE = "slice"  # in `metadata`, where lm-eval lets everything be
NEEDS_LM_EVAL = "run it with lm-eval itself, or write the questions as .jsonl rows"
REFUSED = {
    "class": "is a task written in Python",
    "custom_dataset": "is a data set made by Python code",
    "process_results": "scores answers with Python code",
    "filter_list": "changes answers before they are scored, which is not supported",
    "use_prompt": "takes its text from another library (promptsource)",
    "doc_to_image": "shows images",
    "doc_to_audio": "plays sounds",
    "gen_prefix": "begins answers, which is not supported; append it to doc_to_text",
    "unsafe_code": "runs generated code",
    "repeats": "asks each question several times, which is not supported",
}
FUNCTION = "!function"
FIELDS = ("doc_to_text", "doc_to_target", "doc_to_choice")  # may be Python code that is allowed to run


class Function(Spec):
    """Python code that a task names with `!function`."""

    function: str = Field(alias=FUNCTION, description="module.name, the module beside the YAML")


class DataFiles(Spec):
    data_files: str | tuple[str, ...] | dict[str, str | tuple[str, ...]] = Field(
        description="paths; by split, or all of the split train"
    )
    trust_remote_code: bool = Field(default=False, description="has no effect: no code of a data set runs")


class FewShot(Spec):
    sampler: Literal["default", "first_n"] = Field(
        default="default", description="first_n: the pool's first ones; default: drawn for each question"
    )
    split: str | None = Field(default=None, description="the pool; null = fewshot_split")
    samples: tuple[JsonObject, ...] | None = Field(default=None, description="the pool, as rows")


class GenerationSettings(Spec):
    until: str | tuple[str, ...] | None = Field(default=None, description="null = fewshot_delimiter")
    max_gen_toks: Count = Field(default=MOST_TOKENS, description="most tokens of an answer")
    do_sample: Literal[False] = Field(default=False, description="answers are the most likely ones")
    temperature: Literal[0] = Field(default=0, description="answers are the most likely ones")


class MetricEntry(Spec):
    metric: str
    aggregation: str | None = None
    higher_is_better: bool | None = None
    ignore_case: bool = False
    ignore_punctuation: bool = False


class TaskSource(Spec):
    """A task of lm-eval, as far as it is supported."""

    task: str | None = Field(default=None, description="its name; null = the file's")
    dataset_path: str = Field(description="json, csv, parquet, or the name of a data set")
    dataset_name: str | None = Field(default=None, description="configuration of a named data set")
    dataset_kwargs: DataFiles | None = Field(default=None, description="only data_files")
    training_split: str | None = None
    validation_split: str | None = None
    test_split: str | None = None
    fewshot_split: str | None = None
    process_docs: Function | None = None
    output_type: OutputType = "generate_until"
    doc_to_text: int | str | Function | None = None
    doc_to_target: int | str | tuple[str, ...] | Function | None = None
    doc_to_choice: str | tuple[str, ...] | Function | dict[str, str] | None = Field(
        default=None, union_mode="left_to_right"
    )
    description: str = ""
    target_delimiter: str = " "
    fewshot_delimiter: str = "\n\n"
    fewshot_config: FewShot | None = None
    num_fewshot: int | None = Field(default=None, ge=0, description="solved examples; null = 0")
    generation_kwargs: GenerationSettings | None = None
    metric_list: tuple[MetricEntry, ...] | None = None
    slice: str = Field(default="", description="field of the rows that names their part of the set")

    @property
    def kind(self) -> QuestionKind:
        return KINDS[self.output_type]

    @property
    def asked_split(self) -> str:
        """The split with the questions, chosen as lm-eval does; '' if there is none."""
        return self.test_split or self.validation_split or ""

    @property
    def pool_split(self) -> str:
        """The split with the solved examples; '' if the task lists them."""
        few = self.fewshot_config or FewShot()
        named = few.split or self.fewshot_split
        if named or few.samples is not None:
            return named or ""
        return self.training_split or self.validation_split or self.test_split or ""

    def until(self) -> tuple[str, ...]:
        given = self.generation_kwargs.until if self.generation_kwargs else None
        until = self.fewshot_delimiter if given is None else given
        return (until,) if isinstance(until, str) else until


class ProbedRow(NamedTuple):
    """A row with options that a probe asks in other ways."""

    id: str
    text: str
    options: tuple[str, ...]
    answer: int


class ProbeSpec(Kind):
    """A way to make questions from a few lines of YAML, to see one thing about a model."""

    kind: str

    @property
    def file(self) -> str:
        """The file of rows that questions are made from, relative to the YAML; '' = none."""
        return ""

    @abstractmethod
    def rows(self, of: Sequence[ProbedRow], place: str) -> list[dict[str, Json]]:
        """Rows as a file of rows has them; `item` is the id of the row of `of` that each is made from. Raises
        ConfigError at `place` for settings that do not fit together.
        """


Probe = Annotated[SerializeAsAny[ProbeSpec], BeforeValidator(KindChooser("probe"))]


class ProbeSource(Spec):
    probe: Probe = Field(description="its kind with its settings")


class RowSource(Spec):
    """Settings of a file with one question a row."""

    source: str = Field(description="path of the rows")
    kind: QuestionKind | None = Field(
        default=None,
        description="cloze or text, which rows do not show; null = choice, valued or free, as rows are",
    )
    description: str = Field(default="", description="text before the solved examples and the question")
    shots: int = Field(default=0, ge=0, description="solved examples before each question")
    until: tuple[str, ...] = Field(default=("\n",), description="free: an answer ends before these")
    max_tokens: int = Field(default=64, ge=1, description="free: most tokens of an answer")


def task_of(document: Mapping[str, Json], place: str) -> TaskSource:
    """The task of a YAML document. Raises ConfigError for what is not supported, by name."""
    if isinstance(document.get("task"), list):
        raise ConfigError(f"{place}.task", "is a list: the YAML is a group of tasks", "name one task's YAML")
    for key, why in REFUSED.items():
        if key in document and not _is_unset(key, document[key]):
            raise ConfigError(f"{place}.{key}", why, NEEDS_LM_EVAL)
    if SLICE in document:
        raise ConfigError(f"{place}.{SLICE}", "lm-eval has no such key", f"metadata: {{{SLICE}: <field>}}")
    kept = {key: one for key, one in document.items() if key not in (*WITHOUT_MEANING, *REFUSED)}
    about = document.get("metadata")
    if isinstance(about, Mapping) and SLICE in about:
        if not isinstance(about[SLICE], str):
            raise ConfigError(f"{place}.metadata.{SLICE}", "is not the name of a field of the rows")
        kept[SLICE] = about[SLICE]
    task = parse(TaskSource, kept, place)
    if not task.asked_split:
        raise ConfigError(place, "names no split with questions", "give test_split or validation_split")
    if task.doc_to_target is None:
        raise ConfigError(f"{place}.doc_to_target", "is missing: nothing says which answer is right")
    if task.doc_to_text is None and task.kind != "text":
        raise ConfigError(f"{place}.doc_to_text", "is missing: nothing says what is asked")
    if task.kind == "choice" and task.doc_to_choice is None:
        raise ConfigError(f"{place}.doc_to_choice", "is missing: multiple_choice needs options")
    if task.kind in ("cloze", "text") and task.doc_to_choice is not None:
        raise ConfigError(f"{place}.doc_to_choice", f"has no meaning with output_type {task.output_type}")
    metrics_of(task.kind, task.metric_list, place)
    return task


def _is_unset(key: str, value: Json) -> bool:
    """Whether the value is the one that lm-eval has without the key."""
    if key == "filter_list" and isinstance(value, list):
        plain: Json = [{"function": "take_first"}]  # of several answers, of which there is one
        return all(isinstance(one, Mapping) and one.get("filter") == plain for one in value)
    return value is None or value is False or (key == "repeats" and value == 1)


def metrics_of(
    kind: QuestionKind, listed: tuple[MetricEntry, ...] | None = None, place: str = ""
) -> tuple[Metric, ...]:
    """The metrics of a set; lm-eval's usual ones if none are listed. Raises ConfigError for one that does not
    belong to this kind of question, or is not computed as lm-eval does.
    """
    entries = listed or tuple(MetricEntry(metric=name) for name in USUAL[kind])
    return tuple(_metric(kind, entry, f"{place}.metric_list.{n}") for n, entry in enumerate(entries))


def _metric(kind: QuestionKind, entry: MetricEntry, place: str) -> Metric:
    known = METRICS[kind]
    if entry.metric not in known:
        near = nearest(entry.metric, known)
        advice = f"did you mean {near}? " if near else ""
        problem = f"{entry.metric} is no metric of questions of kind {kind}"
        raise ConfigError(f"{place}.metric", problem, f"{advice}known: {', '.join(known)}")
    aggregation, direction = known[entry.metric]
    if entry.aggregation not in (None, aggregation):
        problem = f"{entry.aggregation} is not supported for {entry.metric}"
        raise ConfigError(f"{place}.aggregation", problem, f"give {aggregation}")
    if entry.higher_is_better not in (None, direction == "maximize"):
        problem = f"{entry.higher_is_better} is wrong for {entry.metric}"
        raise ConfigError(f"{place}.higher_is_better", problem, "leave it out")
    if (entry.ignore_case or entry.ignore_punctuation) and entry.metric != "exact_match":
        raise ConfigError(place, f"ignore_case and ignore_punctuation are not for {entry.metric}")
    return Metric(
        name=entry.metric,
        direction=direction,
        ignore_case=entry.ignore_case,
        ignore_punctuation=entry.ignore_punctuation,
    )


assert set(get_args(QuestionKind)) == set(METRICS)
