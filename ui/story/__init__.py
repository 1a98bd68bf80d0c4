"""The story of an engine up to one event of its trace: what ``micro_vllm.trace.Fold`` knows, and what it forgets."""

from ui.story.story import Story

__all__ = ["Story"]
