"""Errors that a user can act on. Each message is one line: what is wrong, and how to fix it."""

from __future__ import annotations


class MultitokenError(Exception):
    """Base of all errors that this package raises on purpose."""


class ModelError(MultitokenError):
    """A model cannot be found, read, or used."""


class DataError(MultitokenError):
    """A data file is missing or malformed."""


class OptionError(MultitokenError, ValueError):
    """An option has a value that cannot be used.

    Args:
        option: its name.
        value: what was given.
        remedy: what to give instead.
    """

    def __init__(self, option: str, value: object, remedy: str):
        self.option, self.value, self.remedy = option, value, remedy
        super().__init__(f"{option}={value!r}: {remedy}")
