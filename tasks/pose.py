"""pose: make an evaluation set, the questions of a source as they are asked, with solved examples."""

from collections.abc import Sequence
from pathlib import Path

from atelier.engine.config.base import Json
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError
from atelier.engine.config.evaluation_set import KIND, Pose
from atelier.engine.config.task.prepare import PoseConfig
from atelier.engine.io.evaluation_files import FoundSource, find
from atelier.infra.dag import Reference, declare_one
from atelier.infra.store.source_contents import contents_of

VERSION = 2  # rows have groups, items, parts and values of their own
MODULE = "atelier.engine.prepare"
PATHS = ("dataset_kwargs",)  # keys of a source that say where its files are
Contents = dict[str, tuple[tuple[str, str], ...]]


def pose(
    word: str, settings: Pose, *, shots: int | None = None, draw: int = 0, place: str = "evals"
) -> Reference:
    """The evaluation set of `word`: a path of a .yaml or of rows, or a name in conf/questions. `shots`: None
    = as the source says; `draw`: of the solved examples; `place`: configuration key, for errors.
    """
    found = find(word, settings.data, settings.allow, place, shots)
    files = _contents(found, place)
    suffix = [str(shots)] if shots is not None else []
    name = ".".join([found.name, *suffix, *([f"draw{draw}"] if draw else [])])
    drawn: dict[str, Json] = {"seed": settings.seed + draw} if found.shots else {}
    identity: dict[str, Json] = {
        "name": found.name,
        "form": found.form,
        "template": _without_paths(found.document),
        "files": {
            use: [["".join(Path(path).suffixes[-2:]), digest] for path, digest in each]
            for use, each in files.items()
            if each
        },
        "shots": found.shots,
        "max_questions": settings.max_questions,
    }
    origin = {
        "name": place,
        "form": place,
        "template": found.place,
        "files": place,
        "shots": f"{place}.shots",
    }
    return declare_one(
        "pose",
        KIND,
        {},
        name=name,
        version=VERSION,
        node=f"pose.{name}",
        identity=identity | drawn,
        origin=origin | {"seed": f"{place}.seed", "max_questions": f"{place}.max_questions"},
        config=PoseConfig(
            name=found.name,
            form=found.form,
            source=found.document,
            files=files,
            shots=found.shots,
            seed=settings.seed + draw if found.shots else 0,
            max_questions=settings.max_questions,
            place=found.place,
        ),
    )


def pose_held_out(corpus: Reference, settings: Pose) -> Reference:
    """The held-out documents of a corpus as an evaluation set of texts."""
    limit = settings.max_questions
    return declare_one(
        "pose",
        KIND,
        {"corpus": corpus},
        name=f"{corpus.name}-text",
        version=VERSION,
        node=f"pose.{corpus.name}-text",
        identity={"form": "corpus", "max_questions": limit},
        origin={"form": "evals", "max_questions": "pose.max_questions"},
        config=PoseConfig(
            name=f"{corpus.name}-text", form="corpus", source={}, files={}, max_questions=limit
        ),
    )


def pose_answered(chats: Reference, *, name: str, limit: int, most: int) -> Reference:
    """The first `limit` held-out prompts of rendered conversations (with their pairs) as a set of free
    answers, of at most `most` tokens.
    """
    return declare_one(
        "pose",
        KIND,
        {"chats": chats},
        name=name,
        version=VERSION,
        node=f"pose.{name}",
        identity={"form": "answered", "max_questions": limit, "max_tokens": most},
        origin={"form": "tune.chats", "max_questions": "tune.asked", "max_tokens": "tune.answer"},
        config=PoseConfig(
            name=name, form="answered", source={}, files={}, max_questions=limit, max_tokens=most
        ),
    )


def pose_all(words: Sequence[str], settings: Pose, *, place: str = "evals") -> dict[str, Reference]:
    """All sets of these sources by name: one for each number of solved examples and each draw. Raises
    ConfigError for two sets of one name.
    """
    sets: dict[str, Reference] = {}
    words_of: dict[str, str] = {}
    for word in words:
        if settings.draws > 1 and find(word, settings.data, settings.allow, place).takes_first:
            raise ConfigError(
                "pose.draws",
                f"is {settings.draws}, but {word} takes the first examples of its pool, so draws are equal",
                "pose.draws=1, or ask it alone",
            )
        for shots in settings.shots or (None,):
            for draw in range(1 if shots == 0 else settings.draws):
                made = pose(word, settings, shots=shots, draw=draw, place=place)
                if made.name in sets:
                    raise ConfigError(
                        place,
                        f"{word} and {words_of[made.name]} are both called {made.name}",
                        "leave one out, or rename its file or task",
                    )
                sets[made.name], words_of[made.name] = made, word
    return sets


def _without_paths(document: dict[str, Json]) -> dict[str, Json]:
    """The source's document without paths: the identity has the files' content instead."""
    kept = {key: one for key, one in document.items() if key not in PATHS}
    if "probe" in kept:
        kept["probe"] = {key: one for key, one in section_of(kept["probe"]).items() if key != "of"}
    return kept


def _contents(found: FoundSource, place: str) -> Contents:
    """The files by what they are for, each with its content id, in their order."""
    urls = {url for each in found.files.values() for url in each}
    digests = dict(contents_of(sorted(urls), place=place))
    return {use: tuple((url, digests[url]) for url in each) for use, each in found.files.items()}
