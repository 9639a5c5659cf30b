"""Compose the configuration of a run from a command line: Hydra composes, the flow's spec validates, the
result is frozen plain JSON.
"""

from dataclasses import dataclass, field

from atelier.engine.config.base import Given, Json, JsonObject, Spec, parse
from atelier.engine.config.data import Score
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError, nearest, printable
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.role import Role
from atelier.engine.config.sites import Sites
from atelier.engine.config.train import Train
from atelier.engine.config.trajectory import in_teaching_order, resolve_starts
from atelier.engine.io.addresses import check_address
from atelier.engine.io.machine import num_cores
from atelier.flows.run import catalog
from atelier.flows.run.auto import (
    check_memory,
    check_specials,
    check_warmups,
    fastest_layout,
    splits,
    trained,
    with_interval,
    with_prompt,
)
from atelier.flows.run.catalog import options, parameters
from atelier.flows.run.finished_models import check_beginnings, filled
from atelier.flows.run.hydra_document import KEY, composed_document, prepared, unknown_key
from atelier.flows.run.over_sites import (
    SiteHere,
    check_site_given,
    site_here,
    spelled_out,
    with_all_roles,
    with_sites,
)
from atelier.flows.run.overrides import check_overrides, with_keys
from atelier.flows.run.pools import tracker_of
from atelier.flows.run.registry import is_idle
from atelier.flows.run.task_pools import training_pool, with_tasks
from atelier.infra.calibration.history import facts
from atelier.infra.run.resume_plan import Resume
from atelier.infra.store.store import default_root
from atelier.infra.tracking.address import check_form_uri
from atelier.infra.tracking.factory import TrackerSpec

SETTINGS = ("pool", "tracker", "resume", "sites")
WHERE = ("pool", "site", "sites", "tracker")  # choices that do not affect results
LENGTHS = ("train.steps", "train.tokens")
BEFORE_ID, LONGEST_TITLE = " · ", 90


@dataclass(frozen=True)
class RerunRequest:
    """A request to run the past run `run` again with `words` in place of its own. `from_task`: the task
    before which they may change nothing, '' = any.
    """

    run: str
    words: tuple[str, ...] = ()
    from_task: str = ""


@dataclass(frozen=True)
class RunConfig:
    """A flow's final configuration: `document` is plain JSON, `arguments` the validated specs."""

    flow: str
    overrides: tuple[str, ...]
    document: JsonObject
    arguments: Spec
    pool: Pool
    tracker: TrackerSpec
    task_pools: dict[str, Pool] = field(default_factory=dict)  # of tasks that `pool` does not run
    resume: Resume = field(default_factory=Resume)
    companions: dict[str, Role] = field(default_factory=dict)
    sites: Sites = field(default_factory=Sites)
    here: SiteHere | None = None  # this site
    ordered: frozenset[str] | None = None  # tasks that another site ordered
    rerun: RerunRequest | None = None  # as which it was asked for

    def call(self) -> dict[str, Given]:
        """Keyword arguments of the flow's body."""
        arguments: dict[str, Given] = {
            key: getattr(self.arguments, key) for key in type(self.arguments).model_fields
        }
        return {**arguments, **({"companions": self.companions} if self.companions else {})}

    def pool_of(self, task: str) -> Pool:
        """The pool that runs the task."""
        return self.task_pools.get(task, self.pool)

    @property
    def pools(self) -> list[Pool]:
        """All pools of the run, each once."""
        return list({id(pool): pool for pool in (self.pool, *self.task_pools.values())}.values())

    def pool_name(self, task: str) -> str:
        """The name of the task's pool; of one in the flow's own process the file's, or `here`."""
        pool = self.pool_of(task)
        own = task in self.task_pools and pool is not self.pool
        return pool.name or "+".join(pool.members) or (self.pool.tasks[task] if own else "here")

    def check_runs(self) -> None:
        """Raise ConfigError if a pool is only for plans."""
        self.pool.check_runs()
        for task, pool in self.task_pools.items():
            pool.check_runs(f"pool.tasks.{task}")

    def title(self, run_id: str) -> str:
        """The title in lists of runs: the flow, its experiment, other overrides, and the run's id last, where
        `run_of` finds it.
        """
        pairs = [text.lstrip("+").partition("=") for text in self.overrides]
        given = {key: value for key, _, value in pairs}
        experiment, more = given.pop("experiment", ""), list[str]()
        for key, value in given.items():
            if key.split(".")[0] not in WHERE:
                name = "~" * key.startswith("~") + ".".join(key.lstrip("~").split(".")[-2:])
                more.append(f"{name}={value}" if value else name)
        words = f"{self.flow} {experiment}".strip() + (f": {', '.join(more)}" if more else "")
        return f"{printable(words, LONGEST_TITLE)}{BEFORE_ID}{run_id}"

    @property
    def roles(self) -> dict[str, Role]:
        """The roles of the flow, if it has any."""
        return getattr(self.arguments, "roles", None) or {}

    def layout_at(self, site: str) -> Parallel | None:
        """The layout at another site; None = that site chooses. On loopback it is this machine."""
        given = self.sites.parallel.get(site)
        return given or (getattr(self.arguments, "parallel", None) if self.sites.loopback else None)


def run_of(title: str) -> str:
    """The run's id in a `RunConfig.title`."""
    return title.rpartition(BEFORE_ID)[2]


def compose(flow: str, overrides: list[str], *, from_form: bool = False) -> RunConfig:
    """Compose and validate. Raises ConfigError with place, value and nearest known name for every mistake."""
    overrides = overrides if from_form else with_keys(flow, overrides)
    check_overrides(overrides, from_form=from_form)
    _check_idle(flow, overrides)
    known = [*parameters(flow).model_fields, *SETTINGS]
    document = composed_document(flow, [prepared(text, flow, known) for text in _spelled_out(overrides)])
    _check_roles(document)
    if from_form:
        _check_addresses({key: value for key, value in document.items() if key != "tracker"}, "")
    taken = filled(document)
    given = {key: value for key, value in document.items() if key in known}
    stray = [key for key in document if key not in known and not catalog.is_group(key)]
    if stray:
        raise unknown_key(stray[0], flow, known)
    pool = facts(default_root(), parse(Pool, given.pop("pool", {}), "pool"))
    pool, task_pools = with_tasks(default_root(), pool)
    tracker = parse(TrackerSpec, given.pop("tracker", {}), "tracker")
    tracker.check()
    if from_form:
        check_form_uri(tracker.uri, default_root(), [tracker_of(name).uri for name in options("tracker")])
    resume = parse(Resume, given.pop("resume", {}), "resume")
    if from_form and not any(text.lstrip("+~").startswith("sites") for text in overrides):
        given.pop("sites", None)  # a form runs at one site
    sites = parse(Sites, given.pop("sites", {}), "sites")
    if sites.names and from_form:
        way_out = "leave sites out; `atelier <flow> sites=[a,b]` runs over several"
        raise ConfigError("sites", "a form's run is at one site", way_out)
    if not sites.names and sites.needs_names:
        raise ConfigError("sites.names", "is empty, but other keys of sites are given", "sites=[a,b]")
    if sites.names and task_pools:
        raise ConfigError("pool.tasks", "a run over several sites has one pool at each", "leave it out")
    here = site_here(sites, default_root()) if sites.names else None
    arguments = parse(parameters(flow), with_sites(given, sites, here) if here else given, "")
    if here is None:
        check_site_given(arguments)
    arguments = with_prompt(resolved(arguments, training_pool(pool, task_pools)), overrides)
    split = splits(arguments, lambda task: task_pools.get(task, pool))
    arguments = arguments.model_copy(update=split)
    if here is not None:
        arguments = with_all_roles(arguments)
    check_beginnings(arguments, taken, overrides)
    check_warmups(arguments, overrides)
    check_memory(arguments)
    check_specials(arguments)
    return RunConfig(
        flow=flow,
        overrides=tuple(overrides),
        document=arguments.model_dump(mode="json"),
        arguments=arguments,
        pool=pool,
        tracker=tracker,
        task_pools=task_pools,
        resume=resume,
        sites=sites,
        here=here,
    )


def _spelled_out(overrides: list[str]) -> list[str]:
    """Overrides with their implications: of steps and tokens, the one that is given replaces the other, which
    files of conf/ may set.
    """
    given = {match["key"]: match["rest"] for text in overrides if (match := KEY.match(text))}
    implied = [
        f"{other}=0"
        for key, other in (LENGTHS, LENGTHS[::-1])
        if other not in given and (given.get(key) or "=0").strip("=0.")
    ]
    return [*spelled_out(overrides), *implied]


def _check_idle(flow: str, overrides: list[str]) -> None:
    """Refuse overrides that would do nothing. (Files shared by several flows may have such keys.)"""
    for text in overrides:
        match = KEY.match(text)
        if match and match["mark"] != "~" and is_idle(flow, match["key"]):
            raise ConfigError(match["key"], f"does nothing in the flow {flow}", "leave it out")


def _check_addresses(value: Json, place: str) -> None:
    """Raises ConfigError for an address that a form may not use."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_addresses(inner, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_addresses(inner, place)
    elif isinstance(value, str) and "://" in value:
        check_address(value, place)


def _check_roles(document: dict[str, Json]) -> None:
    roles = section_of(document.get("roles"))
    for name, role in roles.items():
        if not isinstance(role, dict) or "model" not in role or "optim" not in role:
            others = [other for other in roles if other != name]
            near = nearest(name, others)
            raise ConfigError(
                f"roles.{name}",
                "there is no such role",
                (f"did you mean {near}? " if near else f"there are: {', '.join(others)}; ")
                + f"add a new one with +role@roles.{name}=student",
            )


def resolved(arguments: Spec, pool: Pool) -> Spec:
    """Fill in fractions and the `auto` values of layout and checkpoints, so that nothing stays open. Raises
    ConfigError for fp8 on CPUs.
    """
    updates: dict[str, Spec | dict[str, Role]] = {}
    parallel = getattr(arguments, "parallel", None)
    train: Train | None = getattr(arguments, "train", None)
    if isinstance(parallel, Parallel):
        cores = num_cores()
        devices = cores if pool.is_cpu else pool.gpus or pool.gpus_per_node or 1
        slots = devices if pool.slots == "auto" else int(pool.slots)
        best = fastest_layout(arguments, pool, slots, cores)
        updates["parallel"] = best.parallel if best else parallel.resolved(slots, cores)
        if best and train is not None and trained(arguments) and not pool.is_cpu:
            updates["train"] = train = train.model_copy(update={"micro_batch": best.micro_batch})
    if train is not None:
        pool.check_precision(train.arithmetic)
    roles: dict[str, Role] | None = getattr(arguments, "roles", None)
    if roles is not None and train is not None:
        in_teaching_order(roles)
        updates["roles"] = resolve_starts(roles, train)
    score = getattr(arguments, "score", None)
    if isinstance(score, Score) and score.sequence == "auto" and train is not None:
        updates["score"] = score.model_copy(update={"sequence": train.sequence})
    if train is not None and train.checkpoint_every == "auto":
        updates["train"] = with_interval(arguments.model_copy(update=updates), train, pool)
    return arguments.model_copy(update=updates)
