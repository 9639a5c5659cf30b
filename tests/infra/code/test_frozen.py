"""Frozen code is restored unchanged, and contains nothing else."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.config.project_roots import GIVEN, ProjectRoot
from atelier.infra.code import frozen
from atelier.infra.code.frozen import freeze, thaw
from atelier.infra.code.provenance import NOTE


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with something in every folder of code, and its secrets beside and among them."""
    folder = tmp_path / "project"
    for name in frozen.FOLDERS:
        (folder / name / "deeper").mkdir(parents=True)
        (folder / name / "deeper" / "some.py").write_text(f"x = '{name}'\n")
    (folder / "conf" / "base.yaml").write_text("a: 1\n")
    monkeypatch.setattr(frozen, "PROJECT", folder)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def put(root: str, packed: bytes) -> str:
    """Bytes under the digest that they have, as somebody with the store's password could."""
    digest = hashlib.sha256(packed).hexdigest()[:32]
    place = Path(root) / "code" / f"{digest}.tar.gz"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(packed)
    return digest


def packed_of(*members: tarfile.TarInfo, note: str = f"atelier/{NOTE}") -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for member in (*([tarfile.TarInfo(note)] if note else []), *members):
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return gzip.compress(raw.getvalue(), mtime=0)


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, target, 1 if kind == tarfile.REGTYPE else 0
    return made


def test_the_same_code_has_the_same_digest_wherever_and_whenever(
    project: Path, root: str, tmp_path: Path
) -> None:
    digest = freeze(root)
    for path in project.rglob("*.py"):
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
        path.chmod(0o755)
    assert freeze(root) == digest == freeze(str(tmp_path / "other"))
    packed = (Path(root) / "code" / f"{digest}.tar.gz").read_bytes()
    assert hashlib.sha256(packed).hexdigest().startswith(digest)


def test_every_byte_and_every_name_of_the_code_is_in_the_digest(project: Path, root: str) -> None:
    seen = {freeze(root)}
    for path in sorted(project.rglob("*.*")):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b"#")
        seen.add(freeze(root))
        path.write_bytes(content)
        path.rename(path.with_name(f"other{path.suffix}"))
        seen.add(freeze(root))
        path.with_name(f"other{path.suffix}").rename(path)
    assert len(seen) == 1 + 2 * (len(frozen.FOLDERS) + 1)


def test_frozen_code_comes_back_byte_for_byte_once(project: Path, root: str, tmp_path: Path) -> None:
    digest = freeze(root)
    folder = thaw(root, digest, tmp_path / "cache")
    code = {name.removeprefix("atelier/"): content for name, content in files_of(folder).items()}
    assert {name: code[name] for name in files_of(project)} == files_of(project)
    assert code.keys() - files_of(project).keys() == {NOTE, "__init__.py", "__main__.py", "api.py"}
    (Path(root) / "code" / f"{digest}.tar.gz").unlink()
    assert thaw(root, digest, tmp_path / "cache") == folder  # unpacked already
    assert folder.stat().st_mode & 0o077 == 0 and [path.name for path in folder.parent.iterdir()] == [digest]


def test_secrets_and_data_of_the_project_stay_at_home(project: Path, root: str, tmp_path: Path) -> None:
    before = freeze(root)
    for place in (".", *frozen.FOLDERS):
        for name in (
            ".env",
            "key.json",
            "token",
            "id.pem",
            ".hidden.py",
            ".secret.yaml",
            "a.py~",
            "data.bin",
        ):
            (project / place / name).write_text("planted")
        (project / place / ".git").mkdir()
        (project / place / ".git" / "hook.py").write_text("planted")
    assert freeze(root) == before
    assert b"planted" not in b"".join(files_of(thaw(root, before, tmp_path / "cache")).values())


def test_the_projects_own_code_is_frozen_without_anything_else(root: str, tmp_path: Path) -> None:
    files = files_of(thaw(root, freeze(root), tmp_path / "cache"))
    assert "atelier/engine/train.py" in files and "atelier/conf/base.yaml" in files
    own = {NOTE, "__init__.py", "__main__.py", "api.py"}
    assert {name.split("/")[1] for name in files} == {*frozen.FOLDERS, *own}
    assert {Path(name).suffix for name in files if not name.endswith(NOTE)} == set(frozen.SUFFIXES)


def test_more_than_code_is_refused_before_it_is_stored(
    project: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen, "MOST", 1 << 20)
    (project / "flows" / "table.py").write_bytes(b"#" * (1 << 20))
    with pytest.raises(ConfigError, match="more than 1 MiB of code"):
        freeze(root)
    assert not (Path(root) / "code").exists()


@pytest.mark.parametrize("digest", ["0" * 32, "../../etc", "", "a/b", "x" * 5000, "é" * 32])
def test_a_digest_that_names_no_code_is_refused(root: str, digest: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leave it blank for the present code") as caught:
        thaw(root, digest, tmp_path / "cache")
    assert caught.value.place == "code" and len(str(caught.value)) < 300


def test_one_wrong_byte_is_found_before_anything_is_unpacked(
    project: Path, root: str, tmp_path: Path
) -> None:
    digest = freeze(root)
    place = Path(root) / "code" / f"{digest}.tar.gz"
    whole = place.read_bytes()
    for position in (0, len(whole) // 2, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        place.write_bytes(damaged)
        with pytest.raises(DamageError, match="does not match its digest"):
            thaw(root, digest, tmp_path / "cache")
        assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "bad",
    [
        member("../escaped.py"),
        member("conf/../../escaped.py"),
        member("link", tarfile.SYMTYPE, "/etc/passwd"),
        member("link", tarfile.SYMTYPE, "conf"),
        member("link", tarfile.LNKTYPE, "../escaped.py"),
        member("pipe", tarfile.FIFOTYPE),
        member("device", tarfile.CHRTYPE),
    ],
)
def test_what_is_no_plain_file_inside_is_not_unpacked(
    root: str, tmp_path: Path, bad: tarfile.TarInfo
) -> None:
    digest = put(root, packed_of(bad))
    before = set(tmp_path.rglob("*"))
    with pytest.raises(DamageError, match="is not code of Atelier"):
        thaw(root, digest, tmp_path / "cache")
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "cache"}


def test_an_absolute_name_stays_inside(root: str, tmp_path: Path) -> None:
    folder = thaw(root, put(root, packed_of(member(f"{tmp_path}/escaped.py"))), tmp_path / "cache")
    assert not (tmp_path / "escaped.py").exists() and list(folder.rglob("escaped.py"))


def test_code_frozen_before_the_modules_had_one_package_is_refused_with_the_way_out(
    root: str, tmp_path: Path
) -> None:
    digest = put(root, packed_of(member("engine/train.py"), note=NOTE))
    with pytest.raises(ConfigError, match="with other module names; submit it again") as caught:
        thaw(root, digest, tmp_path / "cache")
    assert "\n" not in str(caught.value) and list((tmp_path / "cache").iterdir()) == []


NO_ARCHIVES = {  # named: an id made of the bytes would hold the moment of packing
    "nothing": b"",
    "text": b"no archive",
    "text-packed": gzip.compress(b"no archive"),
    "no-note": packed_of(note=""),
}


@pytest.mark.parametrize("packed", NO_ARCHIVES.values(), ids=NO_ARCHIVES.keys())
def test_what_is_no_archive_of_code_is_refused(root: str, tmp_path: Path, packed: bytes) -> None:
    with pytest.raises(DamageError, match="is not code of Atelier"):
        thaw(root, put(root, packed), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_swells_without_end_is_refused(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen, "MOST", 1 << 20)
    large = member("conf/large.yaml")
    large.size = 3 << 20
    with pytest.raises(DamageError, match="more than 2 MiB"):
        thaw(root, put(root, packed_of(large)), tmp_path / "cache")


def test_other_project_roots_are_frozen_with_the_code_and_found_by_who_thaws_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = ProjectRoot("icy", tmp_path / "somewhere" / "icy")
    (root.folder / "engine" / "model").mkdir(parents=True)
    (root.folder / "engine" / "model" / "icy.py").write_text("x = 1\n")
    (root.folder / "secret.py").write_text("x = 1\n")
    before = frozen.installed()
    monkeypatch.setattr(frozen, "other_roots", lambda: (root,))
    digest = frozen.freeze(str(tmp_path / "store"))
    assert digest != before
    folder = frozen.thaw(str(tmp_path / "store"), digest, tmp_path / "code")
    monkeypatch.setenv(GIVEN, "")
    frozen.use_roots_of(folder)
    assert json.loads(os.environ[GIVEN]) == [["icy", str(folder / "roots" / "icy")]]
    assert (folder / "roots" / "icy" / "engine" / "model" / "icy.py").read_text() == "x = 1\n"
    assert not (folder / "roots" / "icy" / "secret.py").exists()
