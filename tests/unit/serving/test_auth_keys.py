"""API keys: shown once, kept as hashes, revoked at once."""

from __future__ import annotations

import json
import os
import stat
from datetime import UTC, datetime, timedelta

import pytest

from serving.auth import KeyFileError, KeyStore


def test_a_key_is_known_by_its_plaintext_only(tmp_path):
    path = tmp_path / "deep" / "keys.json"
    store = KeyStore(path)
    plaintext = store.create_key("acme")
    assert plaintext not in path.read_text()
    assert len(plaintext) > 40
    record = KeyStore(path).verify(plaintext)
    assert record is not None
    assert (record.tenant, record.scope) == ("acme", "tenant")
    for wrong in ("", plaintext + "x", plaintext[:-1], record.sha256, "sk-ä"):
        assert store.verify(wrong) is None


def test_the_file_is_private(tmp_path):
    store = KeyStore(tmp_path / "keys.json")
    store.create_key("acme")
    assert stat.S_IMODE(os.stat(tmp_path / "keys.json").st_mode) == 0o600


def test_keys_made_and_revoked_elsewhere_count_at_once(tmp_path):
    serving, operator = KeyStore(tmp_path / "keys.json"), KeyStore(tmp_path / "keys.json")
    plaintext = operator.create_key("acme", "admin")
    record = serving.verify(plaintext)
    assert record is not None
    assert record.scope == "admin"
    operator.revoke(record.id)
    assert serving.verify(plaintext) is None
    with pytest.raises(KeyError, match=record.id):
        operator.revoke(record.id)


def test_an_expired_key_is_no_key(tmp_path):
    store = KeyStore(tmp_path / "keys.json")
    now = datetime.now(UTC)
    past = store.create_key("acme", expires_at=now - timedelta(seconds=1))
    future = store.create_key("acme", expires_at=now + timedelta(hours=1), requests_per_minute=5)
    assert store.verify(past) is None
    record = KeyStore(tmp_path / "keys.json").verify(future)
    assert record is not None
    assert (record.requests_per_minute, record.concurrent_requests) == (5, None)


def test_a_file_of_an_earlier_version_is_read(tmp_path):
    store = KeyStore(tmp_path / "keys.json")
    plaintext = store.create_key("acme")
    kept = json.loads((tmp_path / "keys.json").read_text())
    for added in ("expires_at", "requests_per_minute", "concurrent_requests"):
        del kept["keys"][0][added]
    (tmp_path / "keys.json").write_text(json.dumps(kept))
    assert KeyStore(tmp_path / "keys.json").verify(plaintext) is not None


@pytest.mark.parametrize("tenant", ["", "Acme", "../x", "a" * 64, "a b", "-a"])
def test_a_tenant_name_has_rules(tmp_path, tenant):
    with pytest.raises(ValueError, match="tenant"):
        KeyStore(tmp_path / "keys.json").create_key(tenant)


@pytest.mark.parametrize("content", ["{", "[]", '{"keys": [{"id": 1}]}', "{}"])
def test_a_broken_file_is_an_error_not_an_empty_one(tmp_path, content):
    (tmp_path / "keys.json").write_text(content)
    with pytest.raises(KeyFileError, match=r"keys\.json"):
        KeyStore(tmp_path / "keys.json")
