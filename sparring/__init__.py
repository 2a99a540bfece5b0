"""The front door: settings, composition, command line, demo. The only place where things are wired together.

Importing this package is cheap; commands import what they need when they run.
"""

__version__ = "0.1.0"
