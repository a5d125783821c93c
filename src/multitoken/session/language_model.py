"""The Python API's model object: text in, text out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any, overload

from transformers import PreTrainedTokenizerBase

from multitoken.engine.method import Method
from multitoken.engine.sampling import LogitsProcessor
from multitoken.errors import OptionError
from multitoken.methods import available, create
from multitoken.methods.registry import validated
from multitoken.models.backbone import Backbone
from multitoken.models.loading import LoadedModel
from multitoken.models.progress import Progress
from multitoken.session.options import GenerateOptions
from multitoken.session.output import Result
from multitoken.session.prompts import Prompt, encode, is_batch
from multitoken.session.session import MAX_ROWS, Chunk, Handle, Session

DEFAULT_METHOD = "auto"


class LanguageModel:
    """A loaded model that generates with any method. Calls from several threads take turns.

    Args:
        loaded: what `multitoken.models.loading.load_model` or `wrap` gives.
    """

    def __init__(self, loaded: LoadedModel):
        self.loaded = loaded
        self._methods: dict[str, Method] = {}
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"LanguageModel({self.name!r}, dtype={self.dtype}, device={self.backbone.device})"

    @property
    def name(self) -> str:
        return self.loaded.name

    @property
    def dtype(self) -> str:
        return self.loaded.dtype

    @property
    def backbone(self) -> Backbone:
        return self.loaded.backbone

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.loaded.tokenizer

    def methods(self) -> list[str]:
        """Names of the methods that can be asked for."""
        return list(available())

    def encode(self, prompt: Prompt, raw: bool = False) -> list[int]:
        """Token ids of a prompt (see `multitoken.session.prompts.encode`)."""
        return encode(self.tokenizer, prompt, raw)

    @overload
    def generate(self, prompt: str, method: str | Method = ..., **options: Any) -> Result: ...
    @overload
    def generate(
        self, prompt: Prompt | Sequence[Prompt], method: str | Method = ..., **options: Any
    ) -> Result | list[Result]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        method: str | Method = DEFAULT_METHOD,
        *,
        raw: bool = False,
        processors: Sequence[LogitsProcessor] = (),
        batch_size: int = MAX_ROWS,
        progress: bool = False,
        **options: Any,
    ) -> Result | list[Result]:
        """Answer one prompt, or several side by side.

        Args:
            prompt: a user's message, a conversation (list of ``{"role", "content"}``), token ids, or a list of these.
            method: name of a method, or an object that has its members.
            raw: a string is text to continue, not a message.
            processors: logits processors with Transformers' call; each sees the true history at every tree node.
            batch_size: most sequences in one forward.
            progress: show a bar over the prompts.
            options: fields of `GenerateOptions`, and the method's own options.

        Returns:
            A `Result`, or a list of them in the order of the prompts.

        Raises:
            OptionError: an option or a prompt that cannot be used; the message says what to change.
        """
        generation, method = self._prepare(method, options)
        if not is_batch(prompt):
            ids = self.encode(prompt, raw)  # type: ignore[arg-type]
            return self._run([ids], method, generation, processors, 1, False)[0]
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise OptionError("batch_size", batch_size, "use a whole number from 1")
        prompts = [self.encode(entry, raw) for entry in prompt]  # type: ignore[arg-type, union-attr]
        return self._run(prompts, method, generation, processors, batch_size, progress)

    def stream(
        self,
        prompt: Prompt,
        method: str | Method = DEFAULT_METHOD,
        *,
        raw: bool = False,
        processors: Sequence[LogitsProcessor] = (),
        **options: Any,
    ) -> Iterator[Chunk]:
        """Answer one prompt piece by piece, one `Chunk` per step; the last one carries the `Result`.

        Arguments are checked before the first piece is asked for. Leaving the iterator early ends the generation, and
        the model can be used between two pieces.
        """
        generation, method = self._prepare(method, options)
        ids = self.encode(prompt, raw)
        with self._lock:
            session = Session(self.loaded, max_rows=1)
            handle = session.submit(ids, method, generation, processors)
        return self._stream(session, handle)

    def _stream(self, session: Session, handle: Handle) -> Iterator[Chunk]:
        try:
            while handle.finish_reason is None:
                # Held for a step only: whoever reads the stream may generate meanwhile, or never come back.
                with self._lock:
                    chunks = session.step()
                yield from chunks
        finally:
            session.close()

    def _run(
        self,
        prompts: Sequence[list[int]],
        method: Method,
        options: GenerateOptions,
        processors: Sequence[LogitsProcessor],
        rows: int,
        progress: bool,
    ) -> list[Result]:
        with self._lock, Progress(progress, "generating", len(prompts)) as bar:
            session = Session(self.loaded, max_rows=rows)
            try:
                handles = [session.submit(ids, method, options, processors) for ids in prompts]
                while session.active or session.waiting:
                    for chunk in session.step():
                        if chunk.result is not None:
                            bar.advance(1)
            finally:
                session.close()  # after an interrupt, methods still let go of their rows
            return [handle.result() for handle in handles]

    def _prepare(self, method: str | Method, options: dict[str, Any]) -> tuple[GenerateOptions, Method]:
        """Split options between generation and method, check both, and make the method (once per set of options)."""
        known = GenerateOptions.model_fields
        generation = validated(GenerateOptions, {k: v for k, v in options.items() if k in known}, "generate")
        rest = {k: v for k, v in options.items() if k not in known}
        if not isinstance(method, str):
            if isinstance(method, type) or not isinstance(method, Method):
                raise OptionError("method", method, f"use a name ({', '.join(available())}) or a Method object")
            for name, value in rest.items():
                raise OptionError(name, value, "is no generation option; set it on the method")
            return generation, method
        if method in available():
            own = available()[method].Options.model_fields
            for name in rest.keys() - own.keys():
                raise OptionError(
                    name,
                    rest[name],
                    f"unknown; method {method} has: {', '.join(own) or 'none'}; generate has: {', '.join(known)}",
                )
        key = json.dumps([method, rest], sort_keys=True, default=str)
        if key not in self._methods:
            self._methods[key] = create(method, **rest)
        return generation, self._methods[key]
