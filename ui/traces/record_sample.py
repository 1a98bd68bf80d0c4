"""Record the sample trace that the page shows before the first prompt.

    python -m ui.traces.record_sample [--model NAME]

Real model, real engine, a pool small enough for preemption, eight requests that arrive one after another; the
recording stops while some still run, so that the charts show an engine at work. Token ids are taken out: charts do not
need them, and the file stays small.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from micro_vllm.config import EngineConfig
from micro_vllm.engine.engine import Engine
from micro_vllm.model_loader import load_model
from micro_vllm.model_loader.loaded import LoadedModel
from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace import TraceLog
from micro_vllm.trace.jsonl import write_trace
from ui.server import SAMPLE_TRACE
from ui.settings import BLOCK_SIZE, DEFAULT_MODEL
from ui.traces.redact import without_tokens

NUM_BLOCKS = 40
LAST_STEP = 118
_CONTEXT = (
    "You help visitors of a small botanical garden. The garden has a palm house, a pond with water lilies, a rock "
    "garden with alpine plants, beds of herbs, and an old orchard with forty kinds of apples. It opens at nine and "
    "closes at six; on Mondays it is closed. Dogs stay outside. Answer in a friendly tone."
)
# (step of arrival, system prompt, prompt, most tokens)
ARRIVALS = (
    (1, "", "What is the capital of France?", 20),
    (3, _CONTEXT, "When does the garden open, and what can I see in spring?", 110),
    (8, _CONTEXT, "May I bring my dog?", 46),
    (13, "", "List twelve words that rhyme with light, then use each in a sentence of its own.", 120),
    (20, _CONTEXT, "Where do I find the apples?", 90),
    (28, "", "Explain to a child how a refrigerator works.", 100),
    (36, "", "Tell the story of a lighthouse keeper who collects lost letters.", 100),
    (76, _CONTEXT, "Which plants grow at the pond, and which in the rock garden?", 64),
)


def record(model: str, path: Path) -> int:
    """Writes the file; returns the number of events."""
    log = TraceLog()
    loaded = load_model(model)
    assert loaded.tokenizer is not None
    config = EngineConfig(
        num_gpu_blocks_override=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=96,
        trace=log,
    )
    _warm_up(loaded)
    engine = Engine(config, loaded)
    waiting = list(ARRIVALS)
    for step in range(1, LAST_STEP + 1):
        while waiting and waiting[0][0] <= step:
            _, system, prompt, max_tokens = waiting.pop(0)
            messages = [{"role": "system", "content": system}] if system else []
            ids = loaded.tokenizer.render_chat_with_ids([*messages, {"role": "user", "content": prompt}])
            engine.add_request(
                {"prompt_token_ids": ids},
                SamplingParams(
                    temperature=0.7,
                    top_p=0.95,
                    seed=len(waiting),
                    max_tokens=max_tokens,
                    min_tokens=max_tokens - 8,
                ),
            )
        engine.step()
    events = list(without_tokens(log.since()))
    write_trace(events, path)
    engine.close()
    return len(events)


def _warm_up(loaded: LoadedModel) -> None:
    """A model's first steps cost more than all later ones, and would be what the latency chart shows."""
    engine = Engine(EngineConfig(num_gpu_blocks_override=NUM_BLOCKS, block_size=BLOCK_SIZE), loaded)
    engine.add_request(
        {"prompt_token_ids": list(range(100, 196))}, SamplingParams(max_tokens=8, ignore_eos=True)
    )
    for _ in range(8):
        engine.step()
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--out", type=Path, default=SAMPLE_TRACE)
    args = parser.parse_args()
    print(f"{record(args.model, args.out)} events in {args.out}")


if __name__ == "__main__":
    main()
