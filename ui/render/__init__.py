"""Text to safe HTML: answers as Markdown with code, formulas and thoughts, prompts as they were typed.

Nothing that a person or a model wrote becomes HTML: every tag and attribute of what is returned is written here.
"""

from ui.render.answer import answer_html
from ui.render.plain import plain
from ui.render.prompt import prompt_html

__all__ = ["answer_html", "plain", "prompt_html"]
