"""Whether this machine can run the native decoder; tests that need it are skipped with the reason."""

from __future__ import annotations

import pytest

from micro_vllm.native import compile as native_compile
from micro_vllm.native.compile import NativeUnavailableError


def why_not_native() -> str:
    """ "" if it can."""
    try:
        native_compile.check_available()
    except NativeUnavailableError as error:
        return str(error)
    return ""


_REASON = why_not_native()
needs_native = pytest.mark.skipif(bool(_REASON), reason=_REASON or "available")
