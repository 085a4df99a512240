"""What a session's state knows of its evidence: read only where it changed, and equal to a reading from scratch."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from timing import best_of

from aether_context.adk.session import Records
from aether_context.canonical import hash_text
from aether_context.evidence import EvidenceRecord, evidence_key, evidence_uri, superseded


def record(name: str, source: str = "read", moment: float = 1.0, **of: Any) -> EvidenceRecord:
    digest = hash_text(name)
    return EvidenceRecord(
        uri=evidence_uri(digest, "log"), digest=digest, size_bytes=9, source=source, time=moment, **of
    )


def state_of(*records: EvidenceRecord) -> dict[str, Any]:
    held = {evidence_key(one.uri): one.model_dump(mode="json") for one in records}
    return {"plan": {"x": 1}, "aether:evidence": held}


def read(state: dict[str, Any]) -> Records:
    records = Records()
    records.read(state)
    return records


changes = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from(["read", "list", ""]), st.integers(0, 5), st.booleans()),
    max_size=30,
)


@given(changes)
def test_reading_on_gives_what_reading_anew_gives(steps):
    state: dict[str, Any] = {}
    records = Records()
    for name, source, moment, goes in steps:
        made = state_of(record(name, source, float(moment)))["aether:evidence"]
        held = state.get("aether:evidence", {})
        held = {key: one for key, one in held.items() if key not in made} if goes else {**held, **made}
        state = {**state, "aether:evidence": copy.deepcopy(held)}
        records.read(state)
        anew = read(state)
        assert records.readings == anew.readings
        assert records.by_digits == anew.by_digits
        in_order = sorted(anew.by_digits.values(), key=lambda one: (one.time or 0.0, one.uri))
        later = superseded(in_order)
        assert anew.readings == {one.uri: later.get(one.uri, "") for one in in_order}


def test_an_address_knows_the_reading_before_it():
    old, new, other = record("a"), record("b", moment=2.0), record("c", "list", 3.0)
    found = read(state_of(old, new, other, record("d", "", 4.0)))
    assert [found.earlier(one.uri) for one in (old, new, other)] == ["", old.uri, ""]
    assert found.earlier("artifact://evidence/0000000000000000.log") == ""
    first_again = read(state_of(record("a", moment=3.0), new))
    assert first_again.earlier(old.uri) == new.uri


def test_what_is_no_record_is_passed_over():
    found = read({"aether:evidence": {"x": "nothing", "y": {"uri": 7}, **state_of(record("a"))["aether:evidence"]}})
    assert list(found.readings) == [record("a").uri]


def test_an_unchanged_state_of_a_thousand_records_costs_next_to_nothing():
    state = state_of(*(record(str(at), f"tool{at % 7}", float(at)) for at in range(1_000)))
    records = read(state)

    assert best_of(20, lambda: records.read(state)) < best_of(5, lambda: read(state)) / 4
