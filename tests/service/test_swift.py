"""Facts about an S3 store that Atelier's storage relies on."""

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest

from tests.service.swift import Credentials, Swift, client, missing, swift

pytestmark = [
    pytest.mark.root,
    pytest.mark.service,
    pytest.mark.skipif(bool(missing()), reason=missing() or "all is here"),
]
ONCE = {"connect_timeout": 2, "read_timeout": 2, "retries": {"total_max_attempts": 1}}
PART = 5 << 20  # bytes, the smallest that S3 takes
RACERS = 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swift]:
    with swift(tmp_path_factory.mktemp("swift") / "store") as running:
        yield running


def filesystem(store: Swift, **settings: Any) -> Any:
    """A client of its own, as another process has it, that asks once."""
    from s3fs import S3FileSystem  # an extra of this project, see `missing`

    made = S3FileSystem(**store.options(), skip_instance_cache=True, config_kwargs=ONCE, **settings)
    made.retries = 1
    return made


def refusal(call: Callable[[], Any]) -> int:
    """The status with which botocore's client was refused; 0 when it was not."""
    from botocore.exceptions import ClientError  # an extra of this project, see `missing`

    try:
        call()
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"]
    return 0


def test_what_was_put_is_there_at_once_for_another_client(store: Swift) -> None:
    writer, reader = filesystem(store), filesystem(store, use_listings_cache=False)
    folder = f"{store.bucket}/put"
    for count, content in enumerate((b"first", b"second, longer")):
        writer.pipe_file(f"{folder}/{count}", b"")
        writer.pipe_file(f"{folder}/a", content)
        assert reader.cat_file(f"{folder}/a") == content
        assert reader.cat_file(f"{folder}/a", start=2, end=5) == content[2:5]
        assert len(reader.ls(folder)) == count + 2
    writer.rm_file(f"{folder}/a")
    assert not reader.exists(f"{folder}/a") and len(reader.ls(folder)) == 2


def test_a_client_that_lists_from_its_memory_does_not_see_what_others_put(store: Swift) -> None:
    writer, reader = filesystem(store), filesystem(store)
    folder = f"{store.bucket}/memory"
    writer.pipe_file(f"{folder}/a", b"")
    assert reader.ls(folder, detail=False) == [f"{folder}/a"]
    writer.pipe_file(f"{folder}/b", b"")
    assert not reader.exists(f"{folder}/b")
    reader.invalidate_cache(folder)
    assert reader.exists(f"{folder}/b") and len(reader.ls(folder)) == 2


def test_a_file_above_one_block_arrives_in_parts_and_whole(store: Swift) -> None:
    files, place = filesystem(store), f"{store.bucket}/parts"
    content = bytes(range(256)) * (2 * PART // 256) + b"end"
    with files.open(place, "wb", block_size=PART) as file:
        file.write(content[:PART])
        file.write(content[PART:])
        assert not filesystem(store).exists(place)
    assert files.size(place) == len(content) and files.cat_file(place) == content
    assert "-" in files.info(place)["ETag"]


def test_an_error_while_a_file_is_written_leaves_the_part_that_was_written(store: Swift) -> None:
    files, place = filesystem(store), f"{store.bucket}/torn"
    with pytest.raises(ValueError, match="in the middle"), files.open(place, "wb") as file:
        file.write(b"half")
        raise ValueError("in the middle")
    assert files.cat_file(place) == b"half"


def test_files_are_deleted_one_by_one_and_not_in_bulk(store: Swift) -> None:
    files, place = filesystem(store), f"{store.bucket}/bulk/a"
    files.pipe_file(place, b"")
    with pytest.raises(OSError, match="Content-MD5"):
        files.rm(place)
    files.rm_file(place)
    assert not files.exists(place)


def test_a_conditional_put_is_refused(store: Swift) -> None:
    service = client(store.endpoint, store.credentials)
    put = {"Bucket": store.bucket, "Key": "conditional", "Body": b"1"}
    assert refusal(lambda: service.put_object(**put, IfNoneMatch="*")) == 501
    with pytest.raises(OSError, match="not supported"):
        filesystem(store).pipe_file(f"{store.bucket}/conditional", b"1", mode="create")
    assert not filesystem(store).exists(f"{store.bucket}/conditional")
    service.close()


def complete(endpoint: str, credentials: Credentials, bucket: str, start: Barrier, outcomes: Any) -> None:
    """Upload in parts and complete, on condition that there is nothing yet, when all racers are so far."""
    service = client(endpoint, credentials)
    where = {"Bucket": bucket, "Key": "race"}
    upload = service.create_multipart_upload(**where)["UploadId"]
    tag = service.upload_part(**where, PartNumber=1, UploadId=upload, Body=b"1")["ETag"]
    whole = {"UploadId": upload, "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": tag}]}}
    start.wait(60)
    outcomes.put(refusal(lambda: service.complete_multipart_upload(**where, **whole, IfNoneMatch="*")))
    service.close()


def test_the_condition_of_an_upload_in_parts_refuses_the_late_and_is_no_lock(store: Swift) -> None:
    """Of those that come together several may win: heeding the condition once does not make a store one to
    build a lease on.
    """
    context = multiprocessing.get_context("spawn")

    def race(num_racers: int) -> list[int]:
        start, outcomes = context.Barrier(num_racers), context.SimpleQueue()
        words = (store.endpoint, store.credentials, store.bucket, start, outcomes)
        racers = [context.Process(target=complete, args=words) for _ in range(num_racers)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        return [outcomes.get() for racer in racers if racer.exitcode == 0]

    codes = race(RACERS)
    assert len(codes) == RACERS and set(codes) <= {0, 412} and 0 in codes
    assert race(1) == [412]


def test_revoked_credentials_are_refused_on_open_connections_and_new_ones_are_good(store: Swift) -> None:
    before = filesystem(store)
    before.pipe_file(f"{store.bucket}/renewed", b"1")
    old = store.credentials
    assert store.renew() != old
    for call in (before.cat_file, before.rm_file, before.exists):
        with pytest.raises(PermissionError):
            call(f"{store.bucket}/renewed")
    assert filesystem(store).cat_file(f"{store.bucket}/renewed") == b"1"
    after = filesystem(store)
    store.revoke()
    with pytest.raises(PermissionError):
        after.cat_file(f"{store.bucket}/renewed")
    store.renew()


def test_a_proxy_that_is_gone_refuses_the_connection_with_no_error_of_the_system(store: Swift) -> None:
    from botocore.exceptions import EndpointConnectionError  # an extra of this project, see `missing`

    files, place = filesystem(store), f"{store.bucket}/gone"
    files.pipe_file(place, b"1")
    for end in (store.stop, store.kill_proxy):
        end()
        with pytest.raises(EndpointConnectionError) as caught:
            filesystem(store).cat_file(place)
        assert not isinstance(caught.value, OSError)
        store.start()
        assert files.cat_file(place) == b"1"


def test_of_a_proxy_that_hangs_a_read_times_out_and_a_write_only_by_its_own_limit(store: Swift) -> None:
    from botocore.exceptions import ReadTimeoutError  # an extra of this project, see `missing`
    from fsspec.exceptions import FSTimeoutError

    files, place = filesystem(store), f"{store.bucket}/hangs"
    files.pipe_file(place, b"1")
    with store.hanging():
        with pytest.raises(ReadTimeoutError):
            files.cat_file(place)
        with pytest.raises(FSTimeoutError):  # read_timeout does not end the wait for "100 Continue"
            files.pipe_file(place, b"2", timeout=4 * ONCE["read_timeout"])
    assert filesystem(store).cat_file(place) in (b"1", b"2")
