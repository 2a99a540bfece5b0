"""The dataset's files: Parquet parts in a folder for each scenario, and manifests that say which parts belong to it.

    conversations/
      manifest.json                            the newest version, with its parts
      versions/00000012.json                   each version without its parts: what it held, and its content hash
      parts/scenario=telesales/part-00000007.parquet

Every file is written whole or not at all (temporary file, fsync, rename), and none is changed afterwards: what is
erased is erased by a new part in place of the old one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines.dataset_rows import SCHEMA, ContentHash, row_digest

MANIFEST, LEASE = "manifest.json", "_publisher.lock"
BATCH_ROWS = 1000
LEASE_SECONDS = 60.0
"""Longest wait for another process that writes or reads parts."""
Progress = Callable[[int, int], None]


class DatasetInUse(RuntimeError):
    """Another process is writing or reading the parts, and was still at it after a minute."""


class DatasetDamaged(RuntimeError):
    """A file of the dataset is gone, or is not what its manifest says. The message names it and the remedy."""


class Part(BaseModel):
    """One file. ``consented``: rows of conversations that training may use."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(pattern=r"^scenario=[a-z0-9][a-z0-9_-]*/part-\d+\.parquet$")
    scenario: str
    rows: int
    consented: int
    bytes: int
    sha256: str


class Manifest(BaseModel):
    """A version of the dataset. ``offsets``: the last one read of each of the log's partitions.

    ``gone``: conversations taken out so far, by reason; ``revised``: those whose outcome was told after they had been
    written. ``content_hash`` is equal for equal conversations, wherever and however often their events were read.
    """

    model_config = ConfigDict(frozen=True)

    version: int
    created_at: datetime
    content_hash: str
    conversations: int
    consented: int
    by_scenario: Mapping[str, int]
    offsets: Mapping[int, int]
    gone: Mapping[str, int]
    revised: int
    parts: tuple[Part, ...] = ()


EMPTY = Manifest(
    version=0,
    created_at=datetime.fromtimestamp(0, UTC),
    content_hash=ContentHash().hexdigest(),
    conversations=0,
    consented=0,
    by_scenario={},
    offsets={},
    gone={},
    revised=0,
)


def read_manifest(directory: Path) -> Manifest:
    """The newest version; version 0, which is empty, where none was published yet. Raises DatasetDamaged."""
    path = directory / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return EMPTY
    except ValidationError as error:
        raise DatasetDamaged(f"{path} is no manifest ({error.error_count()} errors): {_REMEDY}") from None


def read_versions(directory: Path) -> list[Manifest]:
    """All versions, oldest first, without their parts. Raises DatasetDamaged."""
    found = []
    for path in sorted((directory / "versions").glob("*.json")):
        try:
            found.append(Manifest.model_validate_json(path.read_bytes()))
        except ValidationError as error:
            raise DatasetDamaged(f"{path} is no manifest ({error.error_count()} errors): {_REMEDY}") from None
    return found


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """The version for good, then the newest one in place of the one before."""
    alone = manifest.model_copy(update={"parts": ()}).model_dump_json(indent=1)
    write_durably(directory / "versions" / f"{manifest.version:08d}.json", lambda sink: sink.write(alone.encode()))
    whole = manifest.model_dump_json(indent=1)
    write_durably(directory / MANIFEST, lambda sink: sink.write(whole.encode()))


@contextmanager
def held(directory: Path, *, wait: bool = True) -> Iterator[None]:
    """The parts stay as they are, and this process alone may change them. Raises DatasetInUse."""
    directory.mkdir(parents=True, exist_ok=True)
    lease = FileLock(directory / LEASE, timeout=LEASE_SECONDS if wait else 0)
    try:
        lease.acquire()
    except Timeout as error:
        raise DatasetInUse(
            f"{directory} has been in use by another process for {LEASE_SECONDS:g} s: let it finish, or stop it first"
        ) from error
    try:
        yield
    finally:
        lease.release()


def part_rows(directory: Path, part: Part, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a part, all columns or these, in flat memory. Raises DatasetDamaged."""
    path = directory / "parts" / part.name
    try:
        with pq.ParquetFile(path) as source:
            for batch in source.iter_batches(BATCH_ROWS, columns=columns):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise DatasetDamaged(f"{path} can not be read ({type(error).__name__}): {_REMEDY}") from error


def write_part(path: Path, rows: Iterator[Mapping[str, Any]]) -> tuple[int, int]:
    """Write a part durably, in flat memory; no file where there are no rows. Returns rows, and those with consent."""
    count = consented = 0

    def write(sink: IO[bytes]) -> None:
        nonlocal count, consented
        with pq.ParquetWriter(sink, SCHEMA, compression="zstd") as writer:
            for batch in _batches(rows):
                count += len(batch)
                consented += sum(row["consent"] for row in batch)
                writer.write_table(pa.Table.from_pylist(batch, schema=SCHEMA))

    write_durably(path, write)
    if count == 0:
        path.unlink()
    return count, consented


def problems(directory: Path, progress: Progress | None = None) -> list[str]:
    """What of the newest version is not as its manifest says: empty where all is well. Reads every row."""
    manifest = read_manifest(directory)
    found, content, done = [], ContentHash(), 0
    for part in manifest.parts:
        path = directory / "parts" / part.name
        if not path.is_file():
            found.append(f"{path} is gone, and {part.rows:,} conversations with it")
        elif file_sha256(path) != part.sha256:
            found.append(f"{path} is not the file that was written: its sha256 differs from the manifest's")
        else:
            rows = 0
            for row in part_rows(directory, part):
                content.add(row_digest(row))
                rows += 1
            if rows != part.rows:
                found.append(f"{path} has {rows:,} conversations, the manifest says {part.rows:,}")
        done += part.rows
        if progress:
            progress(done, manifest.conversations)
    if not found and content.hexdigest() != manifest.content_hash:
        found.append(
            f"version {manifest.version} has content hash {content.hexdigest()}, not {manifest.content_hash}"
        )
    return found


def file_sha256(path: Path) -> str:
    """Of the whole file, in hexadecimal."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def write_durably(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """There whole, also after a power cut, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as sink:
            write(sink)
            sink.flush()
            os.fsync(sink.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def export(rows: Iterator[dict[str, Any]], target: Path) -> int:
    """Write rows to one file, ``.parquet`` or ``.jsonl`` by its name. Returns how many."""
    if target.suffix == ".parquet":
        return write_part(target, rows)[0]
    count = 0

    def write(sink: IO[bytes]) -> None:
        nonlocal count
        for row in rows:
            sink.write(json.dumps(row, default=str, ensure_ascii=False).encode() + b"\n")
            count += 1

    write_durably(target, write)
    if count == 0:
        target.unlink()
    return count


def _batches(rows: Iterator[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    batch = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


_REMEDY = (
    "bring it back from a backup, or move the dataset's folder away and start the worker, which makes it again from "
    "the event log"
)
