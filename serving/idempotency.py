"""What an ``Idempotency-Key`` promises: the same request again gets the same answer, another one is refused."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from serving.errors import ApiError


def fingerprint_of(target: str, body: dict[str, Any]) -> str:
    """A digest of a request: what it is about, and what it says."""
    return hashlib.sha256(json.dumps([target, body], sort_keys=True).encode()).hexdigest()


def require_same_request(stored: str, fingerprint: str) -> None:
    """Raises ApiError 422 if the key's first request was another one."""
    if stored != fingerprint:
        message = "this Idempotency-Key was used for another request: use a fresh one"
        raise ApiError(422, "idempotency_key_reused", message, param="Idempotency-Key")
