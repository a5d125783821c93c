"""Methods by request: which may be asked for, with which options, one shared object for each set of options."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from multitoken.errors import OptionError
from multitoken.methods import NamedMethod, available
from multitoken.methods.registry import validated

DEFAULT = "auto"
KEPT = 64  # sets of options whose method object is kept
# Options that name files or models, or that let a request keep the engine busy before its first token.
OPERATOR_ONLY = frozenset({"draft_model", "checkpoint", "heads", "dtype", "table_seconds"})
OPERATOR_ONLY_VALUES = frozenset({("init", "calibrated")})
LARGEST_BLOCK = 256


def default_method() -> str:
    return DEFAULT if DEFAULT in available() else "plain"


class MethodPool:
    """Makes methods for requests.

    Args:
        name, options: the server's own method, as the operator has set it up. A request that asks for this method
            starts from these options.
    """

    def __init__(self, name: str, options: Mapping[str, Any] | None = None):
        self.default_name = name
        self._base = dict(options or {})
        self._kept: OrderedDict[str, NamedMethod] = OrderedDict()
        self._known = available()
        if name not in self._known:
            raise OptionError("method", name, f"use one of {', '.join(self._known)}")
        self.default = self._made(name, self._base)

    @property
    def names(self) -> list[str]:
        """Methods that a request may ask for. One that needs a second model is there only if the operator named it."""
        return [name for name in self._known if not self._needs_model(name) or name == self.default_name]

    def get(self, name: str | None, options: Mapping[str, Any] | None) -> NamedMethod:
        """The method of a request. Raises `OptionError` for what does not exist or is the operator's to set."""
        name = name or self.default_name
        if name not in self.names:
            raise OptionError("method", name, f"use one of {', '.join(self.names)}")
        options = options or {}
        for option, value in options.items():
            if option in OPERATOR_ONLY or (option, value if isinstance(value, str) else None) in OPERATOR_ONLY_VALUES:
                raise OptionError(f"method_options.{option}", value, "can only be set where the server is started")
            if option == "block_size" and isinstance(value, int) and value > LARGEST_BLOCK:
                raise OptionError(f"method_options.{option}", value, f"use at most {LARGEST_BLOCK}")
        try:
            return self._made(name, {**(self._base if name == self.default_name else {}), **options})
        except OptionError as error:
            option = error.option if error.option.startswith("method") else f"method_options.{error.option}"
            raise OptionError(option, error.value, error.remedy) from None

    def described(self) -> list[dict[str, Any]]:
        """Name, summary and the options' JSON schema of each method; only what a request may set."""
        return [
            {
                "name": name,
                "summary": self._known[name].summary,
                "lossless": self._known[name].lossless,
                "options": self._schema(name),
            }
            for name in self.names
        ]

    def _made(self, name: str, options: Mapping[str, Any]) -> NamedMethod:
        key = json.dumps([name, options], sort_keys=True, default=str)
        if key not in self._kept:
            cls = self._known[name]
            self._kept[key] = cls(validated(cls.Options, dict(options), f"method {name}"))
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _needs_model(self, name: str) -> bool:
        return "draft_model" in self._known[name].Options.model_fields

    def _schema(self, name: str) -> dict[str, Any]:
        schema = self._known[name].Options.model_json_schema()
        schema["properties"] = {
            option: {**found, **({"default": self._base[option]} if self._is_set(name, option) else {})}
            for option, found in schema.get("properties", {}).items()
            if option not in OPERATOR_ONLY
        }
        return schema

    def _is_set(self, name: str, option: str) -> bool:
        return name == self.default_name and option in self._base
