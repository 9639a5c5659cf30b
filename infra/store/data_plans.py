"""What a trajectory's training read, in a file beside its record: the data plan, with a digest. It is not
identity, which has shares of sum 1 where the training has weights, but follows from the same facts.
"""

import json
from contextlib import suppress
from typing import cast

from atelier.engine.config.base import Json, fingerprint, parse
from atelier.engine.config.data_plan import DataPlan
from atelier.engine.config.error import AtelierError
from atelier.engine.config.sections import sections_of
from atelier.engine.config.train import Train
from atelier.engine.io.storage import exists, join, read_object
from atelier.infra.store.conditional_create import create_exclusive
from atelier.infra.store.store import Store

DATA = "data.json"


def write_data_plan(store: Store, trajectory: str, plan: DataPlan, train: Train) -> None:
    """Write the plan of a trajectory that is about to train, unless it has one. Trainings at several sites
    have none: there an extension may choose the samples.
    """
    place = join(store.address("trajectory", trajectory), DATA)
    if any(section.places for section in sections_of(train).values()) or exists(place):
        return
    document = cast(Json, plan.model_dump(mode="json"))
    create_exclusive(place, json.dumps({"plan": document, "digest": fingerprint(document)}).encode())


def recorded_plan(store: Store, trajectory: str) -> DataPlan | None:
    """The plan of a trajectory; None if it has none that can be read."""
    place = join(store.address("trajectory", trajectory), DATA)
    with suppress(OSError, AtelierError):
        found = read_object(place, "a data plan")
        if fingerprint(found.get("plan")) == found.get("digest"):
            return parse(DataPlan, found.get("plan"), place)
    return None
