"""Training what drafts: text from the model itself, heads, probes, masks, and the loop that they share."""
