"""The command line. Thin: each command validates its options, calls the library, and shows what came back."""

from multitoken.cli.main import main

__all__ = ["main"]
