"""From prompts to results: options, text, and the session that serves many requests."""
