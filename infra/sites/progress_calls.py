"""The calls by which sites tell each other how far the readers of a teacher's answers have come: to a site
that can be called they are said, one that cannot asks for them.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import grpc

from atelier.engine.config.base import Json
from atelier.engine.config.document import parse_as, parse_object
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.messages import ReaderProgress
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.incoming import Incoming, NotTaken
from atelier.infra.sites.refusals import Apart, Refusals
from atelier.infra.sites.transfer import TIMEOUT_S, CallChannel, is_settled, reason

MOST = 1000  # of one answer


class ProgressCalls:
    """What an agent answers and asks about how far readers are, in the mailbox `url` of `site`;
    `begins_anew`: called with a peer and a trajectory where the peer has begun again.
    """

    def __init__(
        self,
        url: str,
        site: str,
        incoming: Incoming,
        audit: Audit,
        service: str,
        refusals: Refusals,
        begins_anew: Callable[[str, str], None],
    ) -> None:
        self._url, self._site, self._incoming, self._audit = url, site, incoming, audit
        self._service, self._refusals, self._begins_anew = service, refusals, begins_anew
        self._told: dict[tuple[str, str], ReaderProgress] = {}  # by peer and trajectory

    # what others ask, by name of the call

    def hear(self, request: bytes, peer: str) -> dict[str, Json]:
        """How far a peer has come."""
        self._hear(parse_as(ReaderProgress, request, peer, "what is said of a progress"), peer)
        return {}

    def progress(self, request: bytes, peer: str) -> dict[str, Json]:
        """How far this site has come in what it learns from a peer's teachers."""
        found = [*self._progress_for(peer, self._audit.complaining)][:MOST]
        for progress in found:
            self._note("fetched", peer, progress)
        return {"progress": [one.model_dump(mode="json", by_alias=True) for one in found]}

    def _progress_for(
        self, peer: str, apart: Callable[[], AbstractContextManager[None]]
    ) -> Iterator[ReaderProgress]:
        """`apart`: around each, of which one may be damaged."""
        for about in self._incoming.trainings(peer):
            if about.teacher == peer:
                found = None
                with apart():
                    found = Mailbox(self._url, about.trajectory).progress(self._site)
                if found is not None:
                    yield found

    def _hear(self, progress: ReaderProgress, peer: str) -> None:
        self._audit.check(peer, progress.kind)
        before = self._told.get((peer, progress.trajectory))
        self._incoming.take_progress(progress, peer)
        if before is None or before.begun != progress.begun:  # it may ask for what it has had
            self._begins_anew(peer, progress.trajectory)
        self._note("received", peer, progress)

    def _note(self, what: str, peer: str, progress: ReaderProgress) -> None:
        """Remember what was said of a progress; the audit log has a line of it when checkpoints are made."""
        key = (peer, progress.trajectory)
        before, self._told[key] = self._told.get(key), progress
        if before is None or (before.begun, before.safe) != (progress.begun, progress.safe):
            if what != "not taken":  # of which there is a line
                self._audit.add(what, who=peer, **told(progress))
            if what != "received":
                self._incoming.forget(progress)

    # what it asks

    def tell(self, channel: CallChannel, peer: str) -> None:
        """Tell a peer how far this site has come, where that is new."""
        each = Apart()
        for progress in self._progress_for(peer, each.one):
            if self._told.get((peer, progress.trajectory)) != progress:
                with each.one():
                    self._tell(channel, peer, progress)
        each.end()

    def _tell(self, channel: CallChannel, peer: str, progress: ReaderProgress) -> None:
        about, text = told(progress), progress.model_dump_json(by_alias=True).encode()
        refusals: list[grpc.RpcError] = []

        def send() -> None:
            channel.unary_unary(f"/{self._service}/Hear")(text, timeout=TIMEOUT_S)

        def refused(error: grpc.RpcError) -> None:
            self._audit.add("not taken", who=peer, why=reason(error), **about)
            refusals.append(error)

        what, of = f"how far this site is in {progress.trajectory[:16]}", f"told {progress.trajectory}"
        if is_settled(send, refused, partial(self._refusals.early, peer, of, what)):
            self._note("not taken" if refusals else "sent", peer, progress)
            self._refusals.settled(peer, of)

    def ask(self, channel: CallChannel, peer: str) -> None:
        """Ask a peer, which this site alone can call, how far it has come."""
        answer = channel.unary_unary(f"/{self._service}/Progress")(b"{}", timeout=TIMEOUT_S)
        found = parse_object(answer, peer, "what is said of a progress").get("progress")
        each = Apart()
        for one in found[:MOST] if isinstance(found, list) else ():
            with each.one():
                progress = parse_as(ReaderProgress, json.dumps(one), peer, "what is said of a progress")
                if self._told.get((peer, progress.trajectory)) != progress:
                    self._heard(progress, peer)
        each.end()

    def _heard(self, progress: ReaderProgress, peer: str) -> None:
        """Take what a peer has answered; what is early or over is passed over."""
        try:
            self._hear(progress, peer)
        except NotTaken as refused:
            if refused.when == "never":
                raise


def told(progress: ReaderProgress) -> dict[str, Json]:
    """What the audit log says of how far a site has come."""
    return {
        "kind": progress.kind,
        "trajectory": progress.trajectory[:16],
        "step": progress.step,
        "safe": progress.safe,
    }
