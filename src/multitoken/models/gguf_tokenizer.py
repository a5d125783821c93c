"""The tokenizer that a GGUF file describes in its metadata.

Built here for the kinds below, since what Transformers builds from the same file depends on its version: 5.16 gives
the wrong end-of-sequence token for byte-level vocabularies, and for Gemma another algorithm and no ``<bos>``.
Other kinds are left to Transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

_CONTROL, _USER_DEFINED = 3, 4  # values of "tokenizer.ggml.token_type"

# Values of "tokenizer.ggml.pre" of vocabularies learned on text with every digit split off. Without that the blanks
# before a number come out as other tokens than in training: "\n\n1" as "\n", "\n", "1".
_SPLIT_BY_DIGIT = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
_GEMMA = {"gemma", "gemma2", "gemma3"}
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "mask": "mask"}
_BLANK = "\u2581"


def read_tokenizer(gguf: Path) -> Any:
    """Return the file's tokenizer as a Transformers tokenizer, with its chat template if it has one."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    meta = _Metadata(gguf)
    backend = _build(meta)
    roles = {f"{role}_token": token for role in _ROLES if (token := meta.special(role)) is not None}
    if backend is None:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
        for role, token in roles.items():
            setattr(tokenizer, role, token)
        for key in ("is_local", "local_files_only"):  # how the file was read is no property of the tokenizer
            tokenizer.init_kwargs.pop(key, None)
        return tokenizer
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=meta.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        padding_side="left",  # generation goes on at the right
        **roles,
    )


class _Metadata:
    def __init__(self, gguf: Path):
        self._reader = GGUFReader(str(gguf))
        self.tokens: list[str] = self.get("tokenizer.ggml.tokens") or []

    def get(self, key: str) -> Any:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def special(self, role: str) -> str | None:
        index = self.get(f"tokenizer.ggml.{_ROLES[role]}_token_id")
        return None if index is None else self.tokens[index]


def _build(meta: _Metadata) -> Tokenizer | None:
    kind, split = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")
    if kind == "gpt2" and split in _SPLIT_BY_DIGIT:
        backend = _byte_level(meta)
    elif kind == "llama" and meta.get("general.architecture") in _GEMMA:
        backend = _gemma(meta)
    else:
        return None
    types = meta.get("tokenizer.ggml.token_type") or []
    named = list(zip(meta.tokens, types, strict=False))
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, kind in named if kind == _CONTROL])
    backend.add_tokens([AddedToken(t, normalized=False) for t, kind in named if kind == _USER_DEFINED])
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
        BPE(vocabulary, _merges(vocabulary), unk_token=meta.special("unk"), fuse_unk=True, byte_fallback=True)
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
