"""Configs of the tasks that curate a corpus. `files`: all files read, each with its content id."""

from pydantic import Field

from atelier.engine.config.base import Spec
from atelier.engine.config.curation import Decontaminate, Deduplicate, LearnedQuality
from atelier.engine.config.data import Source
from atelier.engine.config.filters import Filter

Files = tuple[tuple[str, str], ...]


class CollectConfig(Spec):
    source: Source
    files: Files
    shards: int = 0
    repair: bool = False
    personal: bool = False


class LearnQualityConfig(Spec):
    quality: LearnedQuality


class FilterConfig(Spec):
    filters: tuple[tuple[str, Filter], ...] = Field(description="in order: a database may sort an object")


class DeduplicateConfig(Spec):
    deduplicate: Deduplicate
    sources: tuple[str, ...] = Field(description="by descending priority")


class DecontaminateConfig(Spec):
    decontaminate: Decontaminate
    files: dict[str, Files] = Field(description="of each evaluation set; without those that are inputs")
    sources: tuple[str, ...]


class AssembleConfig(Spec):
    name: str = Field(description="of the source")
    place: int = Field(default=0, description="of the source in the tasks of all sources")
    held_out: float
    is_cut: bool = Field(description="whether long documents are split by their parts")
