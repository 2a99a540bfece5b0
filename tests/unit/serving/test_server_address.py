"""Taking the address: clear errors before anything slow happens."""

from __future__ import annotations

import asyncio
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


async def test_answers_are_not_held_back_for_more_to_come():
    """asyncio turns Nagle's algorithm off only where it sees that a socket is TCP."""
    seen = asyncio.Queue()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = writer.get_extra_info("socket")
        await seen.put(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with bind("127.0.0.1", 0) as listener:
        async with await asyncio.start_server(accept, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            assert await seen.get() != 0
            writer.close()


def test_log_lines_are_json_with_their_fields():
    fields = {"name": "serving", "msg": "step", "levelname": "INFO", "conversation_id": "conv_1"}
    record = logging.makeLogRecord(fields)
    entry = json.loads(JsonLines().format(record))
    assert (entry["message"], entry["level"], entry["conversation_id"]) == ("step", "info", "conv_1")
    assert set(entry) == {"time", "level", "logger", "message", "conversation_id"}
