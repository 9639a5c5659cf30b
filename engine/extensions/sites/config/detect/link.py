"""Sites of a training in which a detector learns from the tokens that a generator has drawn. Torch-free."""

from typing import ClassVar

from atelier.engine.config.detect import DETECTOR, GENERATOR
from atelier.engine.extensions.sites.config.tune.link import TuneLink


class DetectLink(TuneLink):
    """The site of each role. Over `sites` the generator is at home, the detector at another site."""

    ROLES: ClassVar[tuple[str, ...]] = (GENERATOR, DETECTOR)
