"""Tokens: what an answer is made of and what else was likely, and how a text is cut into tokens."""
