"""What the user did wrong, said once and plainly. The command line prints it and exits with 2."""

from __future__ import annotations


class MisuseError(Exception):
    """A setting, argument or file that cannot be used. The message names the value, the limit and the remedy."""
