"""``models`` and ``methods``: what there is to choose from."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from rich.table import Table

from multitoken.cli.command import CommandOptions
from multitoken.cli.flags import default_text, metavar
from multitoken.cli.show import console, print_json
from multitoken.errors import OptionError
from multitoken.methods import NamedMethod, available
from multitoken.models.bundled import BundledModel, bundled_names


class ModelsOptions(CommandOptions):
    """Options of ``models``."""


class MethodsOptions(CommandOptions):
    """Options of ``methods``."""

    name: str | None = Field(None, description="one method only", json_schema_extra={"positional": True})


def run_models(options: ModelsOptions) -> int:
    models = list(bundled_names().values())
    if options.as_json:
        print_json([_model_facts(model) for model in models])
        return 0
    table = Table(title="Models known by name", title_justify="left")
    for heading in ("name", "model", "weights", "licence", "chat", "download", "cached"):
        table.add_column(heading, no_wrap=heading == "name")
    for model in models:
        facts = _model_facts(model)
        table.add_row(
            model.name,
            model.title,
            f"{model.parameters / 1e6:.0f} M",
            model.licence,
            "yes" if model.chat else "no",
            f"{model.download_bytes / 1e6:.0f} MB",
            "yes" if facts["cached"] else "no",
        )
    console().print(table)
    console().print("Any folder of a Transformers checkpoint, .gguf file or hub id works as well: --model PATH_OR_ID")
    return 0


def _model_facts(model: BundledModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "title": model.title,
        "architecture": model.architecture,
        "parameters": model.parameters,
        "licence": model.licence,
        "terms": model.terms,
        "chat": model.chat,
        "download_bytes": model.download_bytes,
        "cached": model.cached,
        "folder": str(model.folder),
    }


def run_methods(options: MethodsOptions) -> int:
    methods = available()
    if options.name is not None:
        if options.name not in methods:
            raise OptionError("name", options.name, f"use one of {', '.join(methods)}")
        methods = {options.name: methods[options.name]}
    if options.as_json:
        print_json([_method_facts(cls) for cls in methods.values()])
        return 0
    out = console()
    for cls in methods.values():
        kind = "lossless" if cls.lossless else "lossy"
        out.print(f"[bold]{cls.name}[/bold] ({kind}): {cls.summary}")
        if cls.Options.model_fields:
            out.print(_options_table(cls))
    out.print("Use: multitoken generate PROMPT --method NAME -o OPTION=VALUE, or --method NAME:OPTION=VALUE")
    return 0


def _options_table(cls: type[NamedMethod]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2))
    for heading in ("option", "value", "default", "meaning"):
        table.add_column(heading, no_wrap=heading == "option")
    for name, field in cls.Options.model_fields.items():
        default = "(needed)" if field.is_required() else default_text(field.get_default(call_default_factory=True))
        table.add_row(name, metavar(field.annotation).replace(",", ", "), default, field.description or "")
    return table


def _method_facts(cls: type[NamedMethod]) -> dict[str, Any]:
    return {
        "name": cls.name,
        "summary": cls.summary,
        "lossless": cls.lossless,
        "options": cls.Options.model_json_schema().get("properties", {}),
    }
