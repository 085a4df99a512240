"""Evidence: what tools and files gave, kept whole in the store, shown as extracts, and read back by lines."""

from aether_context.evidence.offload import StoredResult, offload
from aether_context.evidence.record import EvidenceRecord, evidence_key, evidence_uri, superseded
from aether_context.evidence.show import Extractor, extractor_of, register_extractor

__all__ = [
    "EvidenceRecord",
    "Extractor",
    "StoredResult",
    "evidence_key",
    "evidence_uri",
    "extractor_of",
    "offload",
    "register_extractor",
    "superseded",
]
