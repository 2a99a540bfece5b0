"""API keys: random, shown once, kept as sha256 hashes in one JSON file.

A key has 256 bits of entropy, so a plain hash suffices (there is nothing to guess, hence no slow hash). The
tenant comes from the key and from nowhere else. The file is read again when it changes: a key made or
revoked while the service runs counts at once.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

Scope = Literal["tenant", "admin"]
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class KeyRecord(BaseModel):
    """One key as kept. ``sha256`` is of the whole plaintext key, lower-case hex.

    Limits of its own win over the service's; 0 is no limit, None the service's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    id: str
    tenant: str
    scope: Scope = "tenant"
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    created_at: datetime
    expires_at: AwareDatetime | None = None
    requests_per_minute: int | None = Field(None, ge=0)
    concurrent_requests: int | None = Field(None, ge=0)

    def expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now


class KeyFileError(ValueError):
    """The key file can not be read as one."""


class KeyStore:
    """Keys in a JSON file (mode 0600). One writer at a time is assumed: the operator's command line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._records: tuple[KeyRecord, ...] = ()
        self._reload()

    def create_key(
        self,
        tenant: str,
        scope: Scope = "tenant",
        *,
        expires_at: datetime | None = None,
        requests_per_minute: int | None = None,
        concurrent_requests: int | None = None,
    ) -> str:
        """Make a key and return its plaintext, which is not kept anywhere. Raises ValueError for a bad tenant."""
        if not _TENANT.fullmatch(tenant):
            raise ValueError(
                f"tenant {tenant!r} must be 1 to 63 characters of a-z, 0-9, dot, dash and underscore, "
                "beginning with a letter or digit"
            )
        self._reload()
        plaintext = f"sk-{scope}-{secrets.token_urlsafe(32)}"
        record = KeyRecord(
            id=secrets.token_hex(4),
            tenant=tenant,
            scope=scope,
            sha256=_digest(plaintext),
            created_at=datetime.now(UTC),
            expires_at=expires_at,
            requests_per_minute=requests_per_minute,
            concurrent_requests=concurrent_requests,
        )
        self._write((*self._records, record))
        return plaintext

    def revoke(self, key_id: str) -> None:
        """Forget a key. Raises KeyError if there is none of that id."""
        self._reload()
        kept = tuple(record for record in self._records if record.id != key_id)
        if len(kept) == len(self._records):
            raise KeyError(f"no key {key_id!r} in {self._path}")
        self._write(kept)

    def verify(self, plaintext: str) -> KeyRecord | None:
        """The record of a presented key; None for an unknown or expired one. Same time for each kept key."""
        self._reload()
        presented, found = _digest(plaintext), None
        for record in self._records:
            if hmac.compare_digest(record.sha256, presented):
                found = record
        return None if found is None or found.expired(datetime.now(UTC)) else found

    def records(self) -> tuple[KeyRecord, ...]:
        self._reload()
        return self._records

    def _reload(self) -> None:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            self._stamp, self._records = None, ()
            return
        stamp = (stat.st_mtime_ns, stat.st_ino)
        if stamp == self._stamp:
            return
        try:
            entries = json.loads(self._path.read_text("utf-8"))["keys"]
            self._records = tuple(KeyRecord.model_validate(entry) for entry in entries)
        except (KeyError, TypeError, ValidationError, json.JSONDecodeError) as error:
            raise KeyFileError(
                f"{self._path} is not a key file ({type(error).__name__}): restore or remove it"
            ) from error
        self._stamp = stamp

    def _write(self, records: tuple[KeyRecord, ...]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        body = json.dumps({"keys": [record.model_dump(mode="json") for record in records]}, indent=1)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)
        self._reload()


def _digest(plaintext: str) -> str:
    return hashlib.sha256(plaintext.encode()).hexdigest()
