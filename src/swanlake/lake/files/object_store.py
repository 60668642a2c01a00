"""A client of an S3 object store: lists, deletes, and stores small objects.

DuckDB reads and writes Parquet files itself. Every request has a deadline and is repeated once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from swanlake.errors import StorageUnreachable
from swanlake.lake.files.storage_options import StorageOptions

_ATTEMPTS = 2
_CONNECTIONS = 16
#: Amazon's limit of keys in one request.
_DELETE_BATCH = 1000
_MISSING = {"404", "NoSuchKey", "NotFound", "NoSuchUpload"}
_EXISTS = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}


@dataclass(frozen=True)
class StoredObject:
    """An object, or an upload that has not ended."""

    bucket: str
    key: str
    modified: datetime
    size: int = 0
    #: The id of an unfinished upload.
    upload: str = ""


class ObjectStore:
    """The object store of some options; threads may share it."""

    def __init__(self, options: StorageOptions) -> None:
        # Imported late: only lakes in an object store need it.
        from botocore.config import Config
        from botocore.session import Session

        self._options = options
        keys = {
            "aws_access_key_id": options.key_id,
            "aws_secret_access_key": options.secret,
            "aws_session_token": options.session_token or None,
        }
        with self._reachable("the object store"):
            self._client: Any = Session().create_client(
                "s3",
                region_name=options.region or None,
                endpoint_url=options.endpoint or None,
                **(keys if options.has_keys else {}),
                config=Config(
                    connect_timeout=options.timeout,
                    read_timeout=options.timeout,
                    retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
                    s3={"addressing_style": "path" if options.path_style else "virtual"},
                    # Stores other than Amazon's do not all know the newer checksums.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                    max_pool_connections=_CONNECTIONS,
                ),
            )

    def check_bucket(self, bucket: str, prefix: str) -> None:
        """Raises StorageUnreachable unless the bucket exists and a prefix of it can be listed."""
        with self._reachable(f"s3://{bucket}/{prefix}"):
            self._client.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)

    def objects(self, bucket: str, prefix: str) -> Iterator[StoredObject]:
        """Every object under a prefix."""
        with self._reachable(f"s3://{bucket}/{prefix}"):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=bucket, Prefix=prefix):
                for one in page.get("Contents", ()):
                    yield StoredObject(bucket, one["Key"], one["LastModified"], one["Size"])

    def uploads(self, bucket: str, prefix: str) -> Iterator[StoredObject]:
        """Every upload under a prefix that was begun and has neither been completed nor aborted."""
        with self._reachable(f"s3://{bucket}/{prefix}"):
            pages = self._client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=bucket, Prefix=prefix):
                for one in page.get("Uploads", ()):
                    yield StoredObject(bucket, one["Key"], one["Initiated"], upload=one["UploadId"])

    def size(self, bucket: str, key: str) -> int | None:
        """The size of an object; None if it does not exist."""
        with self._reachable(f"s3://{bucket}/{key}"):
            answer = self._unless_missing(self._client.head_object, Bucket=bucket, Key=key)
            return None if answer is None else int(answer["ContentLength"])

    def read(self, bucket: str, key: str) -> bytes | None:
        """The content of an object; None if it does not exist."""
        with self._reachable(f"s3://{bucket}/{key}"):
            answer = self._unless_missing(self._client.get_object, Bucket=bucket, Key=key)
            return None if answer is None else bytes(answer["Body"].read())

    def write(self, bucket: str, key: str, content: bytes) -> None:
        """Creates or replaces an object."""
        with self._reachable(f"s3://{bucket}/{key}"):
            self._client.put_object(Bucket=bucket, Key=key, Body=content)

    def create(self, bucket: str, key: str, content: bytes) -> bool:
        """Creates an object; False if it exists already."""
        from botocore.exceptions import ClientError

        with self._reachable(f"s3://{bucket}/{key}"):
            try:
                self._client.put_object(Bucket=bucket, Key=key, Body=content, IfNoneMatch="*")
            except ClientError as refused:
                if _error_code(refused) not in _EXISTS:
                    raise
                return False
        return True

    def delete(self, bucket: str, keys: Iterable[str]) -> dict[str, str]:
        """Deletes objects, missing ones included; returns the keys that remain and why."""
        wanted, problems = list(keys), dict[str, str]()
        for start in range(0, len(wanted), _DELETE_BATCH):
            names = [{"Key": key} for key in wanted[start : start + _DELETE_BATCH]]
            with self._reachable(f"s3://{bucket}"):
                answer = self._client.delete_objects(
                    Bucket=bucket, Delete={"Objects": names, "Quiet": True}
                )
            problems |= {one["Key"]: one.get("Message", "") for one in answer.get("Errors", ())}
        return problems

    def abort_upload(self, bucket: str, key: str, upload: str) -> None:
        """Ends an upload and removes its parts; a missing one is ignored."""
        with self._reachable(f"s3://{bucket}/{key}"):
            self._unless_missing(
                self._client.abort_multipart_upload, Bucket=bucket, Key=key, UploadId=upload
            )

    def _unless_missing(self, call: Any, **arguments: str) -> Any:
        from botocore.exceptions import ClientError

        try:
            return call(**arguments)
        except ClientError as refused:
            if _error_code(refused) in _MISSING:
                return None
            raise

    @contextmanager
    def _reachable(self, place: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        try:
            yield
        except ClientError as refused:
            raise StorageUnreachable(_refusal(place, refused)) from None
        except (BotoCoreError, HTTPClientError, OSError, ValueError) as failed:
            reason = " ".join(str(failed).split())
            where = self._options.endpoint or "Amazon S3"
            raise StorageUnreachable(
                f"The lake's files under {place} at {where} cannot be reached: {reason}"
            ) from None


def _error_code(refused: Any) -> str:
    return str(refused.response.get("Error", {}).get("Code", ""))


def _refusal(place: str, refused: Any) -> str:
    """A sentence for what the store said; it contains no key."""
    code = _error_code(refused)
    message = " ".join(str(refused.response.get("Error", {}).get("Message", "")).split()).rstrip(
        "."
    )
    reasons = {
        "NoSuchBucket": "the bucket does not exist",
        "AccessDenied": "the credentials do not allow it",
        "InvalidAccessKeyId": "the store does not know the key id",
        "SignatureDoesNotMatch": "the secret does not belong to the key id",
    }
    reason = reasons.get(code, f"{code}: {message}" if message else code)
    return f"The lake's files under {place} cannot be used: {reason}."
