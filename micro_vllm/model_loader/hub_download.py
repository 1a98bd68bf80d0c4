"""The child process that talks to the Hub: ``python hub_download.py REPO REVISION FOLDER``.

Run by path, so that it imports nothing but huggingface_hub; killing it cancels the download. It says what
it found as JSON on lines that begin with ``MARK``; everything else it prints is a log.
"""

from __future__ import annotations

import json
import sys
from fnmatch import fnmatch

MARK = "micro-vllm-hub:"
PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "vocab.txt", "merges.txt")
"""Weights only as safetensors, no pickles and no code."""
SECONDS_TO_ANSWER = 5.0


def wanted(name: str) -> bool:
    """Whether a file of a repository is fetched: the model's own, in the top folder, and only once.

    ``consolidated*`` are the same weights again in the publisher's own layout.
    """
    return (
        "/" not in name
        and any(fnmatch(name, pattern) for pattern in PATTERNS)
        and not name.startswith("consolidated")
    )


def main(repo_id: str, revision: str, folder: str) -> int:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        info = HfApi().model_info(
            repo_id, revision=revision or None, files_metadata=True, timeout=SECONDS_TO_ANSWER
        )
        files = {
            sibling.rfilename: {"size": sibling.size, "sha256": sibling.lfs.sha256 if sibling.lfs else None}
            for sibling in info.siblings or []
            if wanted(sibling.rfilename)
        }
        _say(commit=info.sha, files=files)
        if any(name.endswith(".safetensors") for name in files):
            snapshot_download(
                repo_id,
                revision=info.sha,
                local_dir=folder,
                allow_patterns=list(files),
                etag_timeout=SECONDS_TO_ANSWER,
            )
        _say(done=True)
        return 0
    except GatedRepoError as error:
        _say(error="gated", message=_first_line(error))
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        _say(error="not found", message=_first_line(error))
    except Exception as error:  # whatever the HTTP library of the day raises for no network, no DNS, a proxy
        _say(error="no answer", message=f"{type(error).__name__}: {_first_line(error)}")
    return 1


def _say(**message: object) -> None:
    print(f"\n{MARK}{json.dumps(message)}", flush=True)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
