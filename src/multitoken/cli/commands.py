"""All commands, in the order of ``multitoken --help``."""

from __future__ import annotations

from multitoken.cli.command import Command

HERE = "multitoken.cli"
GROUPS = {
    "data": "text to train on",
    "train": "train what drafts, on the model's own text",
    "inspect": "measure a model: cost of a forward, alignment of probes, cost of heads",
}
COMMANDS = (
    Command("generate", "answer a prompt, or a file of prompts", f"{HERE}.generate", "GenerateCommand", "run_generate"),
    Command("chat", "talk with a model", f"{HERE}.chat", "ChatCommand", "run_chat"),
    Command("compare", "methods side by side on one prompt", f"{HERE}.compare", "CompareCommand", "run_compare"),
    Command("serve", "OpenAI-compatible server with a playground page", f"{HERE}.serve", "ServeCommand", "run_serve"),
    Command("models", "models that are known by name", f"{HERE}.listing", "ModelsOptions", "run_models"),
    Command("methods", "methods and their options", f"{HERE}.listing", "MethodsOptions", "run_methods"),
    Command(
        "bench", "methods over a set of questions: report with plots", f"{HERE}.bench", "BenchCommand", "run_bench"
    ),
    Command("bench compare", "two results side by side", f"{HERE}.bench", "BenchCompareOptions", "run_compare"),
    Command("inspect cost", "time of a forward against its block size", f"{HERE}.inspect", "CostOptions", "run_cost"),
    Command(
        "inspect alignment",
        "how far probes come to resemble the true tokens, layer by layer",
        f"{HERE}.inspect",
        "AlignmentOptions",
        "run_alignment",
    ),
    Command(
        "inspect heads",
        "time of heads and span predictor beside a forward, by batch size",
        f"{HERE}.inspect_heads",
        "HeadCostOptions",
        "run_head_cost",
    ),
    Command(
        "warmup",
        "prepare a model ahead of time: fetch, compile, measure",
        f"{HERE}.warmup",
        "WarmupCommand",
        "run_warmup",
    ),
    Command("table", "make a model's next-token table ahead of time", f"{HERE}.table", "TableCommand", "run_table"),
    Command(
        "data synthesize",
        "text to train on, written by the model itself",
        f"{HERE}.data",
        "SynthesizeCommand",
        "run_synthesize",
    ),
    Command(
        "train probes",
        "learn probe vectors, minutes on a CPU",
        f"{HERE}.train_mask",
        "TrainProbesCommand",
        "run_train_probes",
    ),
    Command(
        "train mask",
        "self-distil masks that predict several tokens",
        f"{HERE}.train_mask",
        "TrainMaskCommand",
        "run_train_mask",
    ),
    Command(
        "train heads",
        "small heads that predict several tokens, and a span predictor",
        f"{HERE}.train_heads",
        "TrainHeadsCommand",
        "run_train_heads",
    ),
    Command("demo", "see it work: plain and probe, side by side", f"{HERE}.demo", "DemoCommand", "run_demo"),
)
