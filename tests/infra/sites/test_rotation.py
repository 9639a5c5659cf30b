"""A new key and certificate of a site: they match at every moment, even if the rotation is killed."""

import os
import threading
from pathlib import Path

import pytest

from atelier.engine.config.error import DamageError
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.countersign import Countersigning
from atelier.infra.sites.keys import AUDIT, KEY, Keys
from tests.infra.sites.test_agent import Site, two
from tests.infra.sites.test_audit_disputes import signatures
from tests.infra.sites.test_countersign import checked, crossed

MARK = b"-----BEGIN CERTIFICATE-----"


def made_before(keys: Keys) -> None:
    """Have the key alone in its file, as it was written once."""
    path = keys.folder / KEY
    path.write_bytes(path.read_bytes().partition(MARK)[0])


def signing(site: Site) -> Countersigning:
    return Countersigning(site.keys, Audit(site.keys.folder / AUDIT))


def is_pair(site: Site, other: Site) -> bool:
    """Whether what the site signs is by the certificate of its card."""
    signed = signing(site)._own(other.name)
    signed.check(site.keys.card.certificate, "here")
    return signed.statement.certificate == site.keys.card.digest


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("is_done", [False, True])
def test_whoever_is_killed_while_a_key_is_changed_has_the_old_pair_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_done: bool, is_old: bool
) -> None:
    """At each file, just before it is there, or just after."""
    a, b = two(tmp_path)
    if is_old:
        made_before(a.keys)
    replace, digests = os.replace, {a.keys.card.digest}
    for most in range(10):
        left = [most]

        def dies(old: str, new: str, left: list[int] = left) -> None:
            if left[0] or is_done:
                replace(old, new)
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", dies)
            try:
                a.keys.rotate()
            except KeyboardInterrupt:
                pass
            else:
                break
        assert is_pair(a, b)
        digests.add(a.keys.card.digest)
    assert most >= 3 and len(digests) > 1
    assert digests <= a.keys.certificates.keys()  # what was signed with any can be verified


def test_what_is_signed_while_keys_change_is_by_the_certificate_that_it_names(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    over = threading.Event()

    def rotate() -> None:
        for _ in range(30):
            a.keys.rotate()
        over.set()

    changing, mine = threading.Thread(target=rotate), signing(a)
    changing.start()
    while not over.is_set():
        own = mine._own(b.name)  # which looks itself, too
        own.check(a.keys.certificates[own.statement.certificate][1], "here")
    changing.join()


def test_a_key_that_is_not_of_the_card_signs_nothing_until_it_is_changed(tmp_path: Path) -> None:
    """As whoever was killed had it, before key and certificate were in one file."""
    a, b = crossed(tmp_path)
    made_before(b.keys)
    (b.keys.folder / KEY).write_bytes(a.keys.key)
    number = len(signatures(b))
    request, theirs = signing(a)._own("b"), signing(b)
    with pytest.raises(DamageError, match="the signature of b is not by its certificate") as error:
        theirs.answer(request, "a")
    assert str(error.value).startswith(str(b.keys.folder)) and "site rotate" in error.value.way_out
    assert len(signatures(b)) == number
    b.keys.rotate()
    theirs.answer(request, "a")
    assert len(signatures(b)) == number + 1
    checked(b)


def test_a_site_made_before_goes_on_as_it_was(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    before = a.keys.card
    made_before(a.keys)
    assert a.keys.card == before and is_pair(a, b)
    a.keys.rotate()
    assert a.keys.card.digest != before.digest and is_pair(a, b)
