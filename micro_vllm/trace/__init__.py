"""The engine's story as a stream of small frozen events; the page is drawn from it and from nothing else.

``TraceSink.emit(event)`` is the whole protocol. The law: folding the events with ``step <= s`` gives exactly
the engine's state after step s.
"""


from micro_vllm.trace.events import (
    TRACE_FORMAT,
    AnyEvent,
    BlockCached,
    BlockEvicted,
    BlocksAllocated,
    BlocksFreed,
    BlocksNulled,
    BlocksReferenced,
    EngineInfo,
    EngineStarted,
    EngineState,
    GroupInfo,
    PrefixLookup,
    RequestAborted,
    RequestAdmitted,
    RequestFinished,
    RequestMetrics,
    RequestPreempted,
    RequestQueued,
    RequestState,
    SampledToken,
    ScheduledRow,
    Snapshot,
    StepExecuted,
    StepFailed,
    StepPlanned,
    TokensSampled,
    TraceEvent,
)
from micro_vllm.trace.fold import Fold, TraceLawError
from micro_vllm.trace.jsonl import JsonlSink, decode_event, encode_event, read_trace
from micro_vllm.trace.sinks import TeeSink, TraceLog, Tracer, TraceSink

__all__ = [
    "TRACE_FORMAT",
    "AnyEvent",
    "BlockCached",
    "BlockEvicted",
    "BlocksAllocated",
    "BlocksFreed",
    "BlocksNulled",
    "BlocksReferenced",
    "EngineInfo",
    "EngineStarted",
    "EngineState",
    "Fold",
    "GroupInfo",
    "JsonlSink",
    "PrefixLookup",
    "RequestAborted",
    "RequestAdmitted",
    "RequestFinished",
    "RequestMetrics",
    "RequestPreempted",
    "RequestQueued",
    "RequestState",
    "SampledToken",
    "ScheduledRow",
    "Snapshot",
    "StepExecuted",
    "StepFailed",
    "StepPlanned",
    "TeeSink",
    "TokensSampled",
    "TraceEvent",
    "TraceLawError",
    "TraceLog",
    "TraceSink",
    "Tracer",
    "decode_event",
    "encode_event",
    "read_trace",

]
