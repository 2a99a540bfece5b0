"""API keys: shown once, kept as hashes, revoked at once."""

from __future__ import annotations

import os
import stat

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


@pytest.mark.parametrize("tenant", ["", "Acme", "../x", "a" * 64, "a b", "-a"])
def test_a_tenant_name_has_rules(tmp_path, tenant):
    with pytest.raises(ValueError, match="tenant"):
        KeyStore(tmp_path / "keys.json").create_key(tenant)


@pytest.mark.parametrize("content", ["{", "[]", '{"keys": [{"id": 1}]}', "{}"])
def test_a_broken_file_is_an_error_not_an_empty_one(tmp_path, content):
    (tmp_path / "keys.json").write_text(content)
    with pytest.raises(KeyFileError, match=r"keys\.json"):
        KeyStore(tmp_path / "keys.json")
