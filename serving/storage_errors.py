"""What a failing database means to a caller: busy and unreachable are 503 to be tried again, a fork is 409.

Texts name the kind of failure and never what the database said of the statement: that can quote a row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy.exc
from psycopg.errors import ReadOnlySqlTransaction, UniqueViolation
from psycopg_pool import PoolTimeout

from serving.errors import ApiError

ONE_CHILD = "checkpoints_one_child"
"""The unique index on Postgres by which a checkpoint has one successor: a second writer cannot fork a thread."""


def conversation_busy() -> ApiError:
    """Another step of the conversation runs, here or in another replica."""
    message = "another message of this conversation is being answered: wait for it"
    return ApiError(409, "conversation_busy", message, retry_after=1)


@contextmanager
def storage_failures() -> Iterator[None]:
    """Turn the drivers' errors into answers. A message whose step failed so was not taken, or is kept whole."""
    try:
        yield
    except (PoolTimeout, sqlalchemy.exc.TimeoutError) as error:
        message = (
            "no database connection came free in time (checkpoints_timeout_seconds): the database is unreachable, or "
            "checkpoints_pool_size is too small for the load; retry"
        )
        raise ApiError(503, "storage_busy", message, retry_after=1) from error
    except UniqueViolation as error:
        if error.diag.constraint_name != ONE_CHILD:
            raise
        raise conversation_busy() from error
    except (psycopg.OperationalError, psycopg.InterfaceError, ReadOnlySqlTransaction) as error:
        raise _unavailable(error) from error
    except sqlite3.OperationalError as error:
        raise _unavailable(error) from error
    except (sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError) as error:
        raise _unavailable(error.orig or error) from error


def _unavailable(error: BaseException) -> ApiError:
    # SQLite names tables and files only, and its type alone says nothing.
    what = str(error) if isinstance(error, sqlite3.Error) else type(error).__name__
    message = f"the conversation database failed ({what}); retry with the same Idempotency-Key"
    return ApiError(503, "storage_unavailable", message, retry_after=1)
