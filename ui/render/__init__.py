"""Text to safe HTML: answers as Markdown with code, formulas and thoughts, prompts as they were typed."""
