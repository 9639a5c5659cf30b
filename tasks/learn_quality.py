"""learn_quality: train the quality classifier of a curation on documents of good and of bad sources."""

from collections.abc import Mapping
from unicodedata import unidata_version

from atelier.engine.config.curation import LearnedQuality
from atelier.engine.config.task.curation import LearnQualityConfig
from atelier.infra.dag import Reference, declare_one

VERSION = 1
MODULE = "atelier.engine.prepare"


def learn_quality(documents: Mapping[str, Reference], settings: LearnedQuality) -> Reference:
    """The classifier. Its parents are the documents of the named sources."""
    identity = {**settings.as_identity(), "unicode": unidata_version}
    return declare_one(
        "learn_quality",
        "classifier",
        {f"documents.{name}": documents[name] for name in (*settings.positives, *settings.negatives)},
        name="quality",
        version=VERSION,
        identity=identity,
        origin={key: f"data.curation.quality.{key}" for key in settings.as_identity()}
        | {"unicode": "python"},
        config=LearnQualityConfig(quality=settings),
    )
