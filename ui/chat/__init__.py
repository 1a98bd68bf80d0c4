"""The chat: the conversation as data, how an answer grows, and what the buttons do."""
