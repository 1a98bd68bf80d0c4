"""The catalogue of workloads: real prompts, sized for the engine at hand, each with what to watch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from micro_vllm.errors import InvalidRequestError
from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace import EngineInfo
from ui.runs import texts
from ui.runs.run import RunItem
from ui.runs.sizing import common_prefix, overfill
from ui.settings import Limits

MOST_LINES = 64
MOST_CHARACTERS = 100_000
SIZES = (2, 64)
"""Requests that a visitor may choose, where a workload lets them."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a workload is built for."""

    info: EngineInfo
    limits: Limits
    encode: Callable[[str, str], Sequence[int]]
    """(system prompt or "", prompt) -> token ids after the chat template."""
    size: int = 0
    """Requests, where the workload lets the visitor choose; 0: as many as it has by itself."""
    lines: str = ""
    params: SamplingParams = field(default_factory=SamplingParams)
    """Of the sampling panel, for the visitor's own lines."""

    @property
    def at_once(self) -> int:
        """Requests that the visitor may have in the engine at the same time."""
        most = self.limits.max_requests_per_visitor
        return self.info.max_num_seqs if most is None else min(most, self.info.max_num_seqs)

    @property
    def longest_prompt(self) -> int:
        pool = self.info.num_blocks * self.info.block_size
        return min(self.info.max_model_len - 1, pool, self.limits.max_prompt_tokens or pool)

    def answer_tokens(self, wanted: int) -> int:
        return min(wanted, self.limits.max_answer_tokens or wanted)


@dataclass(frozen=True, slots=True)
class Built:
    """Ready to start."""

    items: tuple[RunItem, ...]
    note: str
    """What stands above the cards, with the numbers of this engine."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One choice."""

    name: str
    title: str
    description: str
    watch: str
    """One sentence: what to look for, and in which chart."""
    build: Callable[[Setting], Built]
    """Raises InvalidRequestError where it makes no sense, with what to do."""
    size: int | None = None
    """Requests, if the visitor may choose them."""


def workload(name: Any) -> Workload:
    """By name. Raises InvalidRequestError for an unknown one."""
    found = next((w for w in WORKLOADS if w.name == name), None)
    if found is None:
        known = ", ".join(w.name for w in WORKLOADS)
        raise InvalidRequestError(f"there is no workload {str(name)[:40]!r}; choose one of: {known}.")
    return found


# ---------------------------------------------------------------- shared system prompt


def _shared_prefix(setting: Setting) -> Built:
    info = setting.info
    size = setting.size or SHARED_SIZE
    # Longer than a step's budget where that is possible, so that reading it is seen.
    target = min(info.max_num_batched_tokens + 4 * info.block_size, setting.longest_prompt // 2)
    system = fit(texts.HANDBOOK, lambda text: setting.encode(text, texts.QUESTIONS[0]), target)
    shared = common_prefix([setting.encode(system, text) for text in ("?", "a", "1")])
    items = []
    for number, question in _cycle(texts.QUESTIONS, size):
        params = _params(setting, number, 48)
        ids = tuple(setting.encode(system, question))
        # A block is found once a step has filled it: who arrives in the same moment as the first finds nothing.
        after = 0 if number == 1 else 1
        items.append(
            RunItem(str(number), question, ids, params, shared_prefix_len=shared, after_tokens=after)
        )
    blocks = shared // info.block_size
    return Built(
        tuple(items),
        f"{size} questions behind one system prompt of {shared} tokens, which fills {blocks} KV "
        f"block{'' if blocks == 1 else 's'}.",
    )


# ---------------------------------------------------------------- long among short


def _long_among_short(setting: Setting) -> Built:
    info = setting.info
    pool = info.num_blocks * info.block_size
    target = min(LONG_TOKENS, setting.longest_prompt - 1, info.max_model_len // 2, int(0.45 * pool))
    ask = "Here is a chronicle. Sum it up in two sentences.\n\n"
    chronicle = fit(texts.CHRONICLE, lambda text: setting.encode("", ask + text), target)
    long_ids = tuple(setting.encode("", ask + chronicle))
    shorts = [
        RunItem(
            f"short {number}",
            prompt,
            tuple(setting.encode("", prompt)),
            # Of different lengths: where only few may run at once, some still write when the long one is read.
            _params(setting, number, 50 + 20 * number),
        )
        for number, prompt in _cycle([f"Tell a story about {tale}." for tale in texts.TALES], 6)
    ]
    long_item = RunItem("long", ask + chronicle, long_ids, _params(setting, 7, 60), after_tokens=LONG_AFTER)
    late = [_after(item, LONG_AFTER) for item in shorts[4:]]
    chunks = -(-len(long_ids) // max(1, info.max_num_batched_tokens - 4))
    return Built(
        (*shorts[:4], long_item, *late),
        f"Four stories are being written when a prompt of {len(long_ids)} tokens arrives, two more behind it. At "
        f"{info.max_num_batched_tokens} tokens a step it is read in about {chunks} step{'' if chunks == 1 else 's'}.",
    )


def _after(item: RunItem, after_tokens: int) -> RunItem:
    return RunItem(item.label, item.prompt, item.token_ids, item.params, after_tokens=after_tokens)


# ---------------------------------------------------------------- burst


def _burst(setting: Setting) -> Built:
    size = setting.size or BURST_SIZE
    items = tuple(
        RunItem(str(number), prompt, tuple(setting.encode("", prompt)), _params(setting, number, 32))
        for number, prompt in _cycle(texts.SHORT_PROMPTS, size)
    )
    seats, budget = setting.info.max_num_seqs, setting.info.max_num_batched_tokens
    tokens = sum(len(item.token_ids) for item in items)
    return Built(
        items,
        f"{size} prompts, {tokens:,} tokens, in the same moment. The engine has {seats} seats, and reads at most "
        f"{budget} tokens a step.",
    )


# ---------------------------------------------------------------- memory pressure


def _memory_pressure(setting: Setting) -> Built:
    info = setting.info
    if setting.at_once < 2:
        raise InvalidRequestError(
            "One request at a time cannot push another one out; choose another workload."
        )
    most = min(setting.at_once, len(texts.TALES), max(2, info.num_blocks // 10))
    # A large pool is filled by long prompts too: answers alone would take minutes.
    share = info.num_blocks * info.block_size // len(info.groups) // most
    target = min(share * 13 // 10 - PRESSURE_ANSWER, share * 6 // 10, setting.longest_prompt)
    prompts = [_tale(setting, number, tale, target) for number, tale in _cycle(texts.TALES, most)]
    ids = [tuple(setting.encode("", prompt)) for prompt in prompts]
    size = overfill(info, ids, setting.answer_tokens(info.max_model_len))
    items = tuple(
        RunItem(
            str(number),
            prompts[number - 1],
            ids[number - 1],
            _params(setting, number, size.num_output_tokens, ignore_eos=True),
        )
        for number in range(1, size.count + 1)
    )
    return Built(
        items,
        f"{size.count} stories of {size.num_output_tokens} tokens each want {size.blocks_wanted} blocks in the end; "
        f"the pool has {info.num_blocks}.",
    )


def _tale(setting: Setting, number: int, tale: str, target: int) -> str:
    """The subject comes first, so that no two prompts begin alike."""
    prompt = f"{tale[0].upper()}{tale[1:]}: tell this story at length, with names and places."
    if len(setting.encode("", prompt)) + 64 > target:
        return prompt
    turned = (*texts.CHRONICLE[number:], *texts.CHRONICLE, *texts.CHRONICLE[:number])
    setting_of = f"{prompt} It happens in the town of this chronicle.\n\n"
    return setting_of + fit(turned, lambda text: setting.encode("", setting_of + text), target)


# ---------------------------------------------------------------- the visitor's own


def _own_lines(setting: Setting) -> Built:
    text = setting.lines
    if len(text) > MOST_CHARACTERS:
        raise InvalidRequestError(
            f"Your lines hold {len(text):,} characters; at most {MOST_CHARACTERS:,} are allowed. Shorten them."
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise InvalidRequestError("There is nothing to run yet: write one prompt a line.")
    if len(lines) > MOST_LINES:
        raise InvalidRequestError(
            f"There are {len(lines)} lines with a prompt; at most {MOST_LINES} run at once. Leave some out."
        )
    items = []
    for number, line in enumerate(lines, start=1):
        seed = None if setting.params.seed is None else setting.params.seed + number - 1
        try:
            ids, refusal = tuple(setting.encode("", line)), ""
        except InvalidRequestError as error:
            ids, refusal = (), str(error)
        if len(ids) > setting.longest_prompt:
            refusal = (
                f"This line is {len(ids):,} tokens long with the chat template; at most "
                f"{setting.longest_prompt:,} fit here. Shorten it."
            )
        items.append(RunItem(str(number), line, ids, setting.params.clone(seed=seed), refusal=refusal))
    count = len(items)
    return Built(
        tuple(items),
        f"{count} prompt{'' if count == 1 else 's'} of yours, sampled as set below under Sampling.",
    )


# ---------------------------------------------------------------- shared by them


def fit(sentences: Sequence[str], encode: Callable[[str], Sequence[int]], target: int) -> str:
    """As many sentences from the front as make at most ``target`` tokens, one at least."""
    low, high = 1, len(sentences)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if len(encode(" ".join(sentences[:middle]))) <= target else (low, middle - 1)
        )
    return " ".join(sentences[:low])


def _cycle(prompts: Sequence[str], count: int) -> list[tuple[int, str]]:
    """(number from 1, prompt), from the start again where there are not enough."""
    return [(number, prompts[(number - 1) % len(prompts)]) for number in range(1, count + 1)]


def _params(setting: Setting, seed: int, max_tokens: int, *, ignore_eos: bool = False) -> SamplingParams:
    return SamplingParams(
        temperature=0.7,
        top_p=0.95,
        seed=seed,
        max_tokens=setting.answer_tokens(max_tokens),
        ignore_eos=ignore_eos,
    )


SHARED_SIZE = 8
BURST_SIZE = 40
LONG_TOKENS = 900
LONG_AFTER = 12
PRESSURE_ANSWER = 176

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "shared",
        "Shared prefix",
        "Many questions, one system prompt.",
        "Watch the <b>prefix cache</b>: the first request reads the instructions, the others arrive after it and find "
        "them there; in the <b>KV block map</b> their blocks have several owners.",
        _shared_prefix,
        size=SHARED_SIZE,
    ),
    Workload(
        "long",
        "Long among short",
        "A long prompt arrives while others write.",
        "Watch the <b>step budget</b>: the long prompt is cut into chunks that fill what the running answers leave of "
        "a step, so nobody stands still for it.",
        _long_among_short,
    ),
    Workload(
        "burst",
        "Burst",
        "More prompts at once than seats.",
        "Watch the <b>scheduler timeline</b>: budget and seats decide who is read in which step, the rest wait in a "
        "queue and follow as seats become free.",
        _burst,
        size=BURST_SIZE,
    ),
    Workload(
        "pressure",
        "Memory pressure",
        "Stories that want more blocks than exist.",
        "Watch the <b>scheduler timeline</b>: when the <b>KV block map</b> is full, the newest request is pushed out "
        "(preempted), waits, and is computed again; all of them finish.",
        _memory_pressure,
    ),
    Workload(
        "lines",
        "Your own lines",
        "Each line is a prompt; all run together.",
        "Watch the <b>step budget</b>: all your answers grow in the same steps, one token each.",
        _own_lines,
    ),
)
