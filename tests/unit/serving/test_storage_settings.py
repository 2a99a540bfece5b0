"""The address of the conversation database: what is accepted, and that nothing ever shows its password."""

from __future__ import annotations

import logging
import sqlite3

import pytest
from pydantic import ValidationError

from serving.config import ServingSettings
from serving.errors import ApiError
from serving.store import ConversationStore, sqlite_engine
from sparring.settings import SettingsError, load_settings

PASSWORD = "correct-horse"


@pytest.mark.parametrize(
    "url", [f"mysql://shop:{PASSWORD}@host/db", f"shop:{PASSWORD}@host/db", f"sqlite:///{PASSWORD}", PASSWORD, ""]
)
def test_only_postgres_addresses_are_accepted(url):
    with pytest.raises(ValidationError) as refused:
        ServingSettings(checkpoints_url=url)
    [error] = refused.value.errors(include_input=False)
    assert "postgresql://" in error["msg"]
    assert "SQLite" in error["msg"]
    assert PASSWORD not in error["msg"]


@pytest.mark.parametrize("password", [f"{PASSWORD}@more", f"{PASSWORD}/more", f"%zz{PASSWORD}"])
def test_a_password_that_is_not_encoded_is_explained_without_showing_it(password):
    with pytest.raises(ValidationError) as refused:
        ServingSettings(checkpoints_url=f"postgresql://shop:{password}@host/db")
    [error] = refused.value.errors(include_input=False)
    assert "percent-encode" in error["msg"]
    assert PASSWORD not in str(error)


def test_a_wrong_address_in_the_settings_is_explained_without_showing_it(monkeypatch):
    monkeypatch.setenv("SPARRING_SERVING__CHECKPOINTS_URL", f"mysql://shop:{PASSWORD}@host/db")
    with pytest.raises(SettingsError, match="checkpoints_url") as refused:
        load_settings()
    assert PASSWORD not in str(refused.value)


async def test_a_database_that_cannot_be_reached_stops_the_start_and_shows_no_password(make_shop, caplog):
    url = f"postgresql://shop:{PASSWORD}@127.0.0.1:1/none"
    settings = ServingSettings(checkpoints_url=url)
    with caplog.at_level(logging.DEBUG), pytest.raises(ApiError, match="database failed") as failure:
        async with make_shop(checkpoints_url=url):
            pass
    for shown in (repr(settings), settings.model_dump_json(), str(failure.value), caplog.text):
        assert PASSWORD not in shown


async def test_a_store_file_of_an_earlier_release_is_read_on(tmp_path):
    path = tmp_path / "serving.db"
    with sqlite3.connect(path) as earlier:
        earlier.execute(
            "CREATE TABLE conversations (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, adapter TEXT NOT NULL, "
            "open INTEGER NOT NULL, pending INTEGER NOT NULL, touched REAL NOT NULL) WITHOUT ROWID"
        )
        earlier.execute("INSERT INTO conversations VALUES ('conv_1', 'acme', 'agent@1', 1, 0, 7.5)")
    store = ConversationStore(sqlite_engine(path))
    [row] = await store.open_now()
    assert (row.id, row.tenant, row.adapter, row.open, row.pending, row.touched) == (
        "conv_1",
        "acme",
        "agent@1",
        True,
        False,
        7.5,
    )
    await store.finish("conv_1", [], still_open=False, answer=("acme", "k", "f", {"text": "ü"}))
    answer = await store.answer("acme", "k")
    assert answer is not None
    assert (await store.open_now(), answer.body) == ([], {"text": "ü"})
    store.close()
