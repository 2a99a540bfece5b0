"""Taking the address: clear errors before anything slow happens."""

from __future__ import annotations

import json
import logging
import socket

import pytest

from serving.server import AddressUnavailable, JsonLines, bind


def test_a_taken_port_is_named_with_a_remedy():
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressUnavailable, match=rf"127\.0\.0\.1:{port}.*another port"):
            bind("127.0.0.1", port)


def test_a_foreign_address_is_named():
    with pytest.raises(AddressUnavailable, match=r"192\.0\.2\.1"):
        bind("192.0.2.1", 0)


def test_a_port_just_left_can_be_taken_again():
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            first.accept()[0].close()
    bind("127.0.0.1", port).close()


def test_log_lines_are_json_with_their_fields():
    fields = {"name": "serving", "msg": "step", "levelname": "INFO", "conversation_id": "conv_1"}
    record = logging.makeLogRecord(fields)
    entry = json.loads(JsonLines().format(record))
    assert (entry["message"], entry["level"], entry["conversation_id"]) == ("step", "info", "conv_1")
    assert set(entry) == {"time", "level", "logger", "message", "conversation_id"}
