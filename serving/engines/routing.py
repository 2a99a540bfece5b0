"""Which replica answers a request: the one that has seen the dialogue before, unless it is too busy.

Turns of a dialogue begin with the same tokens, and a server that answered the last turn still has their attention
states. So the prompt's beginning picks the replica (rendezvous hashing: Thaler and Ravishankar 1998; a replica that
goes or comes moves only its own share), and load overrules it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import chain

from serving.engines.replica import Replica

PREFIX = 96
"""Tokens of the prompt that tell dialogues apart: system prompts differ in the private values."""
SPARE = 4
"""Requests that a replica may be ahead of the least busy one."""


def choose(replicas: Sequence[Replica], prompt: Sequence[int] | None) -> Replica | None:
    """A replica that is up, None if none is. Without a prompt the least busy one."""
    up = [replica for replica in replicas if replica.up]
    if not up:
        return None
    idle = min(up, key=lambda replica: replica.in_flight)
    if prompt is None or len(up) == 1:
        return idle
    key = b"".join(token.to_bytes(4, "little") for token in prompt[:PREFIX])
    home = max(up, key=lambda replica: zlib.crc32(bytes(chain(key, replica.url.encode()))))
    return home if home.in_flight <= 2 * idle.in_flight + SPARE else idle
