"""The lease of one machine: one holder, growing tokens, and a holder that was replaced notices."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from pipelines.config import PipelineSettings
from pipelines.round_lease import (
    RECORD_FILE,
    FileLease,
    LeaseLost,
    LeaseTaken,
    LeaseUnavailable,
    PostgresLease,
    round_lease,
)


def test_one_holds_it_and_each_grant_has_a_greater_token(tmp_path: Path) -> None:
    tokens = []
    for owner in ("a", "b", "c"):
        with FileLease(tmp_path, owner).hold() as held:
            held.check()
            tokens.append(held.token)
            with pytest.raises(LeaseTaken, match=f"run by {owner}"), FileLease(tmp_path, "late").hold():
                pass
            held.check()
    assert tokens == [1, 2, 3]


def test_it_is_given_back_when_the_round_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no luck"), FileLease(tmp_path).hold():
        raise RuntimeError("no luck")
    with FileLease(tmp_path).hold() as held:
        assert held.token == 2


@pytest.mark.parametrize("left", ['{"owner": "other:7", "token": 9}', None])
def test_a_holder_that_was_replaced_notices(tmp_path: Path, left: str | None) -> None:
    with FileLease(tmp_path).hold() as held:
        record = tmp_path / RECORD_FILE
        if left is None:
            record.unlink()
        else:
            record.write_text(left)
        with pytest.raises(LeaseLost, match=r"token 1 of .* is gone"):
            held.check()


def test_a_holder_that_gave_it_back_holds_it_no_more(tmp_path: Path) -> None:
    with FileLease(tmp_path).hold() as held:
        pass
    with pytest.raises(LeaseLost):
        held.check()


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / RECORD_FILE).write_text("{")
    with pytest.raises(LeaseUnavailable, match="is damaged"), FileLease(tmp_path).hold():
        pass


def test_the_settings_choose_and_never_show_the_address(tmp_path: Path) -> None:
    assert isinstance(round_lease(PipelineSettings(state_dir=tmp_path)), FileLease)
    secret = "postgresql://me:hidden@127.0.0.1:1/x"
    settings = PipelineSettings(state_dir=tmp_path, lease_database=SecretStr(secret))
    lease = round_lease(settings)
    assert isinstance(lease, PostgresLease)
    assert "hidden" not in repr(settings)
    with pytest.raises(LeaseUnavailable) as caught, lease.hold():
        pass
    assert "hidden" not in str(caught.value)
    with pytest.raises(ValidationError, match="must be postgresql://"):
        PipelineSettings(lease_database=SecretStr("mysql://x"))
