"""The tokenizer that a GGUF file describes in its metadata.

Built here for the kinds below, since what Transformers builds from the same file depends on its version: 5.16 gives
the wrong end-of-sequence token for byte-level vocabularies, and for Gemma another algorithm and no ``<bos>``.
Other kinds are left to Transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

_CONTROL, _USER_DEFINED = 3, 4  # values of "tokenizer.ggml.token_type"

# Values of "tokenizer.ggml.pre" of vocabularies learned on text with every digit split off. Without that the blanks
# before a number come out as other tokens than in training: "\n\n1" as "\n", "\n", "1".
_SPLIT_BY_DIGIT = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
_GEMMA = {"gemma", "gemma2", "gemma3"}
_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_BLANK = "\u2581"


def read_tokenizer(path: Path) -> Any:
    """Return the file's tokenizer as a Transformers tokenizer, with its chat template if it has one."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    meta = _Metadata(path)
    backend = _build(meta)
    settings = {role: token for role, name in _ROLES.items() if (token := meta.special(name)) is not None}
    if template := meta.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    if backend is not None:
        # Generation goes on at the right, so a batch is filled up at the left.
        return PreTrainedTokenizerFast(
            tokenizer_object=backend, clean_up_tokenization_spaces=False, padding_side="left", **settings
        )
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    for name, value in settings.items():
        setattr(tokenizer, name, value)
    for name in ("is_local", "local_files_only"):  # how the file was read is no property of the tokenizer
        tokenizer.init_kwargs.pop(name, None)
    return tokenizer


class _Metadata:
    def __init__(self, path: Path):
        self._reader = gguf.GGUFReader(str(path))
        self.tokens: list[str] = self.get("tokenizer.ggml.tokens") or []

    def get(self, key: str) -> Any:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def special(self, name: str) -> str | None:
        index = self.get(f"tokenizer.ggml.{name}_token_id")
        return None if index is None else self.tokens[index]


def _build(meta: _Metadata) -> Tokenizer | None:
    kind, split = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")
    if kind == "gpt2" and split in _SPLIT_BY_DIGIT:
        backend = _byte_level(meta)
    elif kind == "llama" and meta.get("general.architecture") in _GEMMA:
        backend = _gemma(meta)
    else:
        return None
    vocabulary = backend.get_vocab()
    for token, kind in zip(meta.tokens, meta.get("tokenizer.ggml.token_type") or [], strict=False):
        if kind == _CONTROL:
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _USER_DEFINED and token in vocabulary:
            backend.add_tokens([AddedToken(token, normalized=False)])
    if meta.get("tokenizer.ggml.add_bos_token") and (bos := meta.special("bos")):
        index = backend.token_to_id(bos)
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, index)]
        )
    return backend


def _byte_level(meta: _Metadata) -> Tokenizer:
    merges = [tuple(merge.split(" ")) for merge in meta.get("tokenizer.ggml.merges")]
    backend = Tokenizer(BPE({token: index for index, token in enumerate(meta.tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _gemma(meta: _Metadata) -> Tokenizer:
    # Runs of blanks are spelled with real spaces in the file, unlike all other tokens.
    tokens = [_BLANK * len(token) if token and not token.strip(" ") else token for token in meta.tokens]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(
        BPE(vocabulary, _merges(vocabulary), unk_token=meta.special("unknown"), fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Replace(" ", _BLANK)
    backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    backend.decoder = decoders.Sequence([decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _merges(vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to cut a token into two others; the file lists none, but its tokens stand in merge order."""
    merges = []
    for token in vocabulary:
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [(left, right) for left, right in pairs if left in vocabulary and right in vocabulary]
        merges += sorted(known, key=lambda pair: (len(pair[0]), vocabulary[pair[0]]), reverse=True)
    return merges
