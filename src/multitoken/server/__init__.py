"""OpenAI-compatible HTTP server on one engine, with continuous batching and a playground page (extra ``server``)."""
