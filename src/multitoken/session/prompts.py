"""From what a user gives to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from multitoken.errors import OptionError

Message = Mapping[str, str]
Prompt = str | Sequence[Message] | Sequence[int]


def encode(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, raw: bool = False) -> list[int]:
    """Token ids of a prompt.

    Args:
        prompt: a user's message as a string, a conversation as messages with ``role`` and ``content``, or token ids,
            which are taken as they are.
        raw: a string is text to continue, not a message. So it is for a tokenizer without a chat template.

    Raises:
        OptionError: an empty prompt, a malformed message, or messages for a tokenizer without a chat template.
    """
    if isinstance(prompt, (str, Sequence)) and not prompt:
        raise OptionError("prompt", prompt, "give some text, or at least one message")
    if isinstance(prompt, str):
        if raw or tokenizer.chat_template is None:
            return _ids(tokenizer, prompt, special=True)
        return _render(tokenizer, [{"role": "user", "content": prompt}])
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise OptionError("prompt", prompt, "give a string, a list of messages, or a list of token ids")
    if all(isinstance(token, int) and not isinstance(token, bool) for token in prompt):
        return list(prompt)  # type: ignore[arg-type]
    if raw:
        raise OptionError("raw", True, "goes with a text prompt; leave it out for messages")
    return _render(tokenizer, [_message(entry) for entry in prompt])


def is_batch(prompt: object) -> bool:
    """Whether ``prompt`` is several prompts: a list of strings, of conversations, or of lists of ids."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and len(prompt) > 0
        and all(isinstance(entry, (str, Sequence)) for entry in prompt)
    )


def _message(entry: object) -> Message:
    if not isinstance(entry, Mapping) or not {"role", "content"} <= entry.keys():
        raise OptionError("messages", entry, 'give objects such as {"role": "user", "content": "Hello"}')
    for key in ("role", "content"):
        if not isinstance(entry[key], str):
            raise OptionError(f"messages.{key}", entry[key], "give a string")
    return entry


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    if tokenizer.chat_template is None:
        raise OptionError("messages", "a conversation", "this model has no chat template; give a text prompt")
    try:
        text = str(
            tokenizer.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
            )
        )
    except Exception as error:  # templates raise what they like
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        roles = [message["role"] for message in messages]
        raise OptionError("messages", roles, f"the chat template refuses them: {reason}") from error
    # The template writes the special tokens itself, so the tokenizer must not add them again.
    return _ids(tokenizer, text, special=False)


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, special: bool) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, or a byte of a command line that is not UTF-8
        raise OptionError("prompt", text[error.start], "is no Unicode character; give UTF-8 text") from None
    found = [int(token) for token in tokenizer(text, add_special_tokens=special)["input_ids"]]  # type: ignore[union-attr]
    if not found:
        raise OptionError("prompt", text, "it has no tokens; give some text")
    return found
