"""What /metrics shows: counts, times and sizes, never texts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (64, 256, 1024, 4096, 16_384, 65_536)


class Meters:
    """The meters of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of = self.registry
        ProcessCollector(registry=of)
        self.requests = Counter("bertkit_requests", "Answered requests", ["path", "status"], registry=of)
        self.seconds = Histogram("bertkit_request_seconds", "To answer", ["path"], buckets=SECONDS, registry=of)
        self.active = Gauge("bertkit_active_requests", "Read, waiting or answered now", registry=of)
        self.waiting = Gauge("bertkit_waiting_requests", "Not yet given to the model", registry=of)
        self.rows = Counter("bertkit_rows", "Answered rows", registry=of)
        self.truncated = Counter("bertkit_truncated_rows", "Answered rows whose text was cut", registry=of)
        self.batch_rows = Histogram("bertkit_batch_rows", "In one call of the model", buckets=ROWS, registry=of)
        self.batch_tokens = Histogram("bertkit_batch_tokens", "Estimated", buckets=TOKENS, registry=of)
        self.model_seconds = Histogram("bertkit_model_seconds", "Of one call", buckets=SECONDS, registry=of)

    def text(self) -> bytes:
        """Prometheus's text format."""
        return generate_latest(self.registry)
