"""The metrics of /metrics, in Prometheus's format: counts, times and sizes, never texts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (64, 256, 1024, 4096, 16_384, 65_536)


class Metrics:
    """The metrics of the process and its model, in their own registry."""

    def __init__(self) -> None:
        self.registry = to = CollectorRegistry()
        ProcessCollector(registry=to)
        self.requests = Counter("bertkit_requests", "Answered requests", ["path", "status"], registry=to)
        self.seconds = Histogram(
            "bertkit_request_seconds", "Per request", ["path"], buckets=SECONDS, registry=to
        )
        self.active = Gauge("bertkit_active_requests", "Requests being read, queued or answered", registry=to)
        self.waiting = Gauge("bertkit_waiting_requests", "Queued: not yet given to the model", registry=to)
        self.rows = Counter("bertkit_rows", "Answered rows", registry=to)
        self.truncated = Counter("bertkit_truncated_rows", "Answered rows whose text was cut", registry=to)
        self.batch_rows = Histogram("bertkit_batch_rows", "Per call of the model", buckets=ROWS, registry=to)
        self.batch_tokens = Histogram(
            "bertkit_batch_tokens", "Estimated, per call", buckets=TOKENS, registry=to
        )
        self.model_seconds = Histogram(
            "bertkit_model_seconds", "Per call of the model", buckets=SECONDS, registry=to
        )

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)
