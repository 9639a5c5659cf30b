"""Measured rates of a site's link: bytes a second to each peer, in a file a peer beside the messages.
Torch-free.
"""

from pydantic import Field

from atelier.engine.config.base import Spec, canonical
from atelier.engine.config.error import AtelierError
from atelier.engine.config.site_name import SiteName
from atelier.engine.io.storage import exists, join, read_as, write_bytes

FOLDER, LEAST = "rates", 1 << 10  # bytes of the smallest transfer that measures a rate


class Rate(Spec):
    peer: SiteName
    bytes_per_s: float = Field(gt=0, description="of the last transfer that was large enough")


def tell_rate(url: str, peer: str, num_bytes: int, seconds: float) -> None:
    """Record the rate of a transfer to a peer, unless it was too small."""
    if num_bytes >= LEAST and seconds > 0:
        rate = Rate(peer=peer, bytes_per_s=num_bytes / seconds)
        write_bytes(_place(url, peer), canonical(rate.model_dump(mode="json")))


def rate_to(url: str, peer: str) -> float | None:
    """Bytes a second to a peer; None if the file is missing or damaged."""
    place = _place(url, peer)
    try:
        return read_as(Rate, place, "a measured rate").bytes_per_s if exists(place) else None
    except AtelierError:
        return None


def _place(url: str, peer: str) -> str:
    return join(url, FOLDER, f"{peer}.json")
