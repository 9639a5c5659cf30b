import gzip
import subprocess
import sys

import pytest

from atelier.engine.config.data import Labels, Source
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.io.source_files import TOPICS, content_id, files_of, short_names, stdlib_folder


def test_stdlib_lists_source_and_topics_but_no_tests_no_installed_packages_and_nothing_of_this_machine():
    names = [path.removeprefix(f"{stdlib_folder()}/") for path in files_of(Source())]
    assert names == sorted(names)
    assert {TOPICS, "os.py", "asyncio/tasks.py"} <= set(names)
    folders = {part for name in names for part in name.split("/")[:-1]}
    assert not folders & {
        "test",
        "tests",
        "idle_test",
        "site-packages",
        "dist-packages",
        "__pycache__",
        "encodings",
    }
    assert not any("_sysconfigdata" in name or name.startswith("config-") for name in names)


def test_some_packages_of_the_standard_library_can_be_named_and_a_wrong_name_is_told_the_nearest():
    names = [path.removeprefix(f"{stdlib_folder()}/") for path in files_of(Source(source="stdlib:json, os"))]
    assert "json/decoder.py" in names
    assert {name.split("/")[0] for name in names} == {"json", "os.py"}
    with pytest.raises(ConfigError, match=r"data\.source: .*no package 'asyncoi'; did you mean asyncio\?"):
        files_of(Source(source="stdlib:asyncoi"))


def test_a_glob_gives_sorted_absolute_paths_of_text_files(tmp_path, monkeypatch):
    for name in ("b.txt", "a.jsonl", "c.txt.gz", "d.csv"):
        (tmp_path / name).write_text("x")
    monkeypatch.chdir(tmp_path)
    assert files_of(Source(source="*")) == [str(tmp_path / n) for n in ("a.jsonl", "b.txt", "c.txt.gz")]
    assert files_of(Source(source="./b.txt")) == [str(tmp_path / "b.txt")]
    assert files_of(Labels(source=str(tmp_path))) == [str(tmp_path / "a.jsonl")]


def test_a_missing_path_names_what_was_looked_for_and_the_nearest_name(tmp_path):
    (tmp_path / "novels.txt").write_text("x")
    with pytest.raises(ConfigError) as caught:
        files_of(Source(source=str(tmp_path / "novel.txt")))
    message = str(caught.value)
    assert message.startswith("data.source: ")
    assert str(tmp_path / "novel.txt") in message
    assert f"did you mean {tmp_path}/novels.txt?" in message


def test_a_missing_folder_is_advised_from_the_deepest_folder_that_exists(tmp_path):
    (tmp_path / "corpora").mkdir()
    with pytest.raises(ConfigError, match=f"did you mean {tmp_path}/corpora"):
        files_of(Source(source=str(tmp_path / "corpra" / "deep" / "x.txt")))


def test_a_glob_without_a_match_is_a_data_error(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match=r"no file matches .*\*\.jsonl.*; give a path"):
        files_of(Source(source=str(tmp_path / "*.jsonl")))


def test_a_file_of_another_kind_is_refused_with_the_kinds_that_are_known(tmp_path):
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(ConfigError, match=r"not a text file; known: \.txt"):
        files_of(Source(source=str(tmp_path / "a.csv")))
    with pytest.raises(DataError, match="has no text file"):
        files_of(Source(source=str(tmp_path)))


def test_an_unknown_protocol_is_a_config_error():
    with pytest.raises(ConfigError, match=r"labels\.source: nowhere://x"):
        files_of(Labels(source="nowhere://x"))


def test_content_id_follows_content_and_nothing_else(tmp_path):
    one, two = tmp_path / "1.txt", tmp_path / "2.txt"
    one.write_text("same")
    two.write_text("same")
    assert content_id(str(one)) == content_id(str(two))
    two.write_text("same.")
    assert content_id(str(one)) != content_id(str(two))


def test_files_in_an_object_store_are_urls_with_a_content_id():
    import fsspec

    store = fsspec.filesystem("memory")
    store.pipe_file("/shelf/a.jsonl.gz", gzip.compress(b"{}"))
    try:
        assert files_of(Source(source="memory://shelf/*.jsonl.gz")) == ["memory:///shelf/a.jsonl.gz"]
        assert content_id("memory:///shelf/a.jsonl.gz").startswith("remote:")
    finally:
        store.rm("/shelf", recursive=True)


def test_short_names_leave_out_the_folders_that_all_share():
    assert short_names(["/a/b/x.txt", "/a/b/c/x.txt"]) == {"/a/b/x.txt": "x.txt", "/a/b/c/x.txt": "c/x.txt"}
    assert short_names(["/a/b/x.txt"]) == {"/a/b/x.txt": "x.txt"}


def test_listing_needs_neither_torch_nor_numpy_nor_tokenizers():
    heavy = "[m for m in ('torch', 'numpy', 'tokenizers') if m in sys.modules]"
    code = f"import sys, atelier.engine.io.source_files; print({heavy})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
