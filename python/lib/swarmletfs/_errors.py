"""The exceptions of the package. Their texts are the messages of the command line."""

from __future__ import annotations


class Error(Exception):
    """A store cannot be read or written, or an operation failed."""


class NotFound(Error, LookupError):
    """The view has no such worker, run or path, or the store no such worker."""


class Invalid(Error, ValueError):
    """An argument cannot be used: a size, a query, a path, an id or a message."""


class Finished(Error):
    """The worker has finished, so its record does not change any more."""


# Programs see the public names.
for _class in (Error, NotFound, Invalid, Finished):
    _class.__module__ = "swarmletfs"
