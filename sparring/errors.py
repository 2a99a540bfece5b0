"""What the user did wrong, said once and plainly. The command line prints it and exits with 2."""

from __future__ import annotations


class MisuseError(Exception):
    """A setting, argument or file that cannot be used. The message names the value, the limit and the remedy."""


class RefusedError(Exception):
    """Understood, and the answer is no: a gate that failed, a version that may not be promoted. Exit code 1."""
