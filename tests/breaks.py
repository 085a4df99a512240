"""Sixty faults that `tests/sabotage.py` puts into the package one by one: what a hurried change could get wrong.

A name says what is wrong then. At least one stands in each room.
`tests/test_tests.py` checks that they fit the code.
"""

from __future__ import annotations

from typing import NamedTuple


class Break(NamedTuple):
    """A fault: ``old``, which stands once in the function, is replaced by ``new``."""

    name: str
    path: str
    """The module's file below the package."""
    function: str
    """The qualified name of the function or method."""
    old: str
    new: str


BREAKS = (
    # ---- adk: refusals, recall, agents' scopes, sessions -----------------------------------------------------------
    Break(
        "answer-tokens-stay-in-learned-limit",
        "adk/overflow.py",
        "overflow_of",
        "Overflow(limit - answer, sent_tokens",
        "Overflow(limit, sent_tokens",
    ),
    Break(
        "largest-window-of-fallback-models",
        "adk/windows.py",
        "Windows.of",
        "min(windows, key=lambda window: window.tokens)",
        "max(windows, key=lambda window: window.tokens)",
    ),
    Break(
        "refusal-is-lost-with-its-run",
        "adk/learning.py",
        "Learning._learn",
        "owner.refused = context.invocation_id, {WINDOWS: learned}",
        "pass",
    ),
    Break("past-shows-other-branches", "adk/past.py", "_loaded", "and in_branch and in_scope", "and in_scope"),
    Break(
        "gate-asks-for-one-repair-too-many",
        "adk/acceptance.py",
        "AcceptanceGate._run_async_impl",
        "repairs >= self.most_repairs",
        "repairs > self.most_repairs",
    ),
    Break(
        "no-turn-is-recalled-at-a-message",
        "adk/packer.py",
        "RequestPacker._enrich",
        "if not source.request.first_call or",
        "if source.request.first_call or",
    ),
    Break(
        "rule-always-spares-short-results",
        "adk/evidence.py",
        "Offloader._store_new_results",
        "and not needs_proof and result.tool not in self._always)",
        "and not needs_proof)",
    ),
    Break(
        "epoch-of-another-session-is-loaded",
        "adk/session.py",
        "_fields",
        'not isinstance(value, Mapping) or value.get("session") != identity.session',
        "not isinstance(value, Mapping)",
    ),
    Break(
        "memory-service-gets-unmasked-query",
        "adk/request/memories.py",
        "search_memories",
        "query = await aside(len(query), partial(call.policy.mask, query))",
        "await aside(len(query), partial(call.policy.mask, query))",
    ),
    Break(
        "failed-results-instruct", "adk/request/instructions.py", "active_instructions", " or is_error(response)", ""
    ),
    Break(
        "tools-out-of-scope-stay-declared",
        "adk/request/write.py",
        "_declared",
        "if declaration.name not in scope.left_out",
        "if declaration.name",
    ),
    Break(
        "thoughts-are-remembered",
        "adk/services/memory.py",
        "text_of_parts",
        "if part.text and not part.thought",
        "if part.text",
    ),
    Break(
        "summarizer-reads-secrets",
        "adk/models/texts.py",
        "ModelSummarizer._ask",
        '"text": policy.mask(request.text)',
        '"text": request.text',
    ),
    # ---- packing: what is chosen, lent, cut and written ------------------------------------------------------------
    Break(
        "wishes-fill-the-window",
        "packing/selection.py",
        "_demote_preferences",
        "tokens_left -= wish.tokens",
        "tokens_left -= 0",
    ),
    Break(
        "all-others-leave-where-one-is-enough",
        "packing/compaction.py",
        "leave_out",
        "over -= sum(unpacked_items[at].tokens for at in places)",
        "over -= 0",
    ),
    Break(
        "loans-beyond-demand",
        "packing/allocation.py",
        "lend",
        "loan = min(part, demand[layer] - final[layer])",
        "loan = part",
    ),
    Break("slack-is-no-reserve", "packing/allocation.py", "allocate", "if needed > room:", "if needed > window:"),
    Break(
        "messages-leave-before-results-get-shorter",
        "packing/last_resort.py",
        "bring_within_window",
        "        _shorten_responses,\n        _shorten_parts,\n        _drop_other_messages,\n",
        "        _drop_other_messages,\n        _shorten_responses,\n        _shorten_parts,\n",
    ),
    Break(
        "essential-tools-are-narrowed-away",
        "packing/tools.py",
        "_narrowed",
        "tool.name in names or (tool.essential and tool.name not in aside)",
        "tool.name in names",
    ),
    Break(
        "another-step-keeps-the-choice",
        "packing/epoch_state.py",
        "_epoch_state",
        'epoch_reason in ("first_call", "step_changed", "role_changed", "acceptance_changed")',
        'epoch_reason in ("first_call", "role_changed", "acceptance_changed")',
    ),
    Break(
        "a-part-of-the-checklist-is-valid",
        "packing/payload.py",
        "validity_of",
        "if not all(items_sent):",
        "if not any(items_sent):",
    ),
    Break(
        "evidence-hides-that-it-is-superseded",
        "packing/payload.py",
        "evidence_line",
        "{covers}{later}{summary}",
        "{covers}{summary}",
    ),
    Break(
        "whole-history-forgets-what-was-cut",
        "packing/rendering.py",
        "_whole_history_tokens",
        "head + source.epoch.cut_tokens + contents",
        "head + contents",
    ),
    # ---- conversation ----------------------------------------------------------------------------------------------
    Break(
        "cut-takes-the-newest-turns",
        "conversation/turns.py",
        "cut",
        "(named[at], units[at].turn, units[at].from_agent, at)",
        "(named[at], -units[at].turn, units[at].from_agent, at)",
    ),
    Break(
        "exchange-is-torn",
        "conversation/turns.py",
        "units",
        "        if answered:\n",
        "        if len(answered) > 1:\n",
    ),
    Break(
        "boundary-of-placeholders-goes-back",
        "conversation/stable_prefix.py",
        "StablePrefix.trim",
        "for at in replaceable if begin <= at < end), default=begin)",
        "for at in replaceable if begin <= at < end), default=0)",
    ),
    Break(
        "orders-cannot-be-taken-back",
        "conversation/orders.py",
        "_apply",
        'if effect in ("lifts", "replaces"):',
        'if effect == "replaces":',
    ),
    Break(
        "summary-forgets-earlier-counts",
        "conversation/summary.py",
        "summarize",
        "sum(int(count) for count in _COUNT.findall(earlier)) + len(by_people)",
        "len(by_people)",
    ),
    Break(
        "extract-loses-its-address",
        "conversation/extracts.py",
        "_shorten_object",
        '{"extract": shortened}), **address}',
        '{"extract": shortened})}',
    ),
    # ---- evidence, memory, retrieval -------------------------------------------------------------------------------
    Break(
        "errors-are-offloaded",
        "evidence/offload.py",
        "offload",
        "if tokens <= _ERROR_FACTOR * settings.threshold_tokens and is_error(response):",
        "if tokens <= settings.threshold_tokens and is_error(response):",
    ),
    Break(
        "one-line-too-many-is-read",
        "evidence/passages.py",
        "read_lines",
        "min(len(view.lines), start + count)",
        "min(len(view.lines), start + count + 1)",
    ),
    Break("apps-share-a-users-memories", "memory/records.py", "owner_of", "who_of(app, user)", 'who_of("", user)'),
    Break(
        "deleted-memories-come-back",
        "memory/records.py",
        "new_or_changed",
        "(revive if record is None else record != row.record)",
        "(record != row.record)",
    ),
    Break(
        "expired-memories-are-chosen",
        "retrieval/ranking.py",
        "retrieve",
        "candidate.expires is not None and candidate.expires < now",
        "candidate.expires is not None and candidate.expires > now",
    ),
    Break(
        "this-session-is-found-as-memory",
        "retrieval/pool.py",
        "Pool.ranked",
        "np.where(self._threads == without_thread, 0.0, total)",
        "np.where(self._threads == without_thread, total, total)",
    ),
    # ---- usage, state, plans, text, tokens, policy, pack -----------------------------------------------------------
    Break(
        "limit-is-passed-by-one-call",
        "usage/__init__.py",
        "TokenLedger.check",
        "(used >= limit or used + needed > limit)",
        "(used >= limit)",
    ),
    Break(
        "unknown-cache-counts-as-none",
        "usage/__init__.py",
        "Totals.cached_share",
        "self.input_tokens - self.unknown_cache_tokens",
        "self.input_tokens",
    ),
    Break(
        "cached-tokens-cost-as-much",
        "usage/prices.py",
        "Prices.cost",
        "cached = min(cached_tokens, input_tokens)",
        "cached = min(0, input_tokens)",
    ),
    Break(
        "another-models-reports-calibrate",
        "usage/calibration.py",
        "learn_report",
        "if baseline is None or baseline.model != model:",
        "if baseline is None:",
    ),
    Break(
        "steps-do-not-wait-for-others",
        "state/board.py",
        "ready_steps",
        'if step.status == "ready" and done.issuperset(step.depends_on)',
        'if step.status == "ready"',
    ),
    Break(
        "done-step-stays-current",
        "plans/parsing.py",
        "_Reader._current",
        '[leaf for leaf in matches if leaf.step.status != "done"]',
        "matches",
    ),
    Break("extract-skips-errors", "text/shorten.py", "_sample", "        (0.15, _errors(texts)),\n", ""),
    Break("texts-count-a-tenth", "tokens/media.py", "media_tokens", "size_bytes // 3 + 1", "size_bytes // 30 + 1"),
    Break(
        "one-nested-setting-resets-its-siblings",
        "policy.py",
        "merged",
        "merged(previous, value) if isinstance(previous, Mapping)",
        "value if isinstance(previous, Mapping)",
    ),
    Break(
        "spare-tokens-are-not-budget",
        "pack/selection.py",
        "Allocation.budget",
        "self.window - self.slack + self.spare_tokens",
        "self.window - self.slack",
    ),
    Break("keys-of-json-are-not-masked", "redaction.py", "Masker.json", "name = self(str(key))", "name = str(key)"),
    Break(
        "large-objects-keep-their-keys-order",
        "canonical.py",
        "in_pieces",
        "(sorted(value) if sort else list(value))",
        "list(value)",
    ),
    Break(
        "advice-for-the-smallest-layer",
        "errors.py",
        "StepTooLarge.__init__",
        "self.largest = max(",
        "self.largest = min(",
    ),
    # ---- store, reading, exam, tuning, viewer, cli, demo -----------------------------------------------------------
    Break(
        "index-keeps-a-forgotten-sessions-manifests",
        "store/retention.py",
        "all_of",
        'shared += [entry for entry in remaining if entry.kind == "index" and not',
        'shared += [entry for entry in () if entry.kind == "index" and not',
    ),
    Break(
        "arguments-are-stored-unmasked",
        "store/masking.py",
        "masked_part",
        "{inside: mask.json(item[inside])}",
        "{inside: item[inside]}",
    ),
    Break(
        "replay-accepts-any-request",
        "store/replay.py",
        "Replayer.replay",
        "window is None and not matches:",
        "window is None and not manifest.checksum:",
    ),
    Break(
        "verify-overlooks-missing-texts", "store/replay.py", "Replayer.missing", "if name not in texts", "if not name"
    ),
    Break(
        "diff-says-left-for-entered",
        "lab/reading/difference.py",
        "_change",
        'return "entered" if newer.sent else "left"',
        'return "left" if newer.sent else "entered"',
    ),
    Break(
        "why-overlooks-a-spans-last-call",
        "lab/reading/why.py",
        "_Search._verdict",
        "span.first <= number <= span.last",
        "span.first <= number < span.last",
    ),
    Break(
        "exam-counts-a-stored-result-as-whole",
        "lab/exam/marking.py",
        "_Examiner.marked",
        "if question.place not in whole or question.stored:",
        "if question.place not in whole:",
    ),
    Break(
        "tuning-allows-sessions-that-did-not-play",
        "lab/tuning/verdict.py",
        "decide",
        "if trial.over <= 0 and not trial.unplayed",
        "if trial.over <= 0",
    ),
    Break(
        "viewer-hides-what-is-over-the-window",
        "lab/viewer/calls.py",
        "CallReader._call",
        '"over the window": manifest.over_window,',
        '"over the window": manifest.over_window > manifest.window,',
    ),
    Break(
        "forget-deletes-without-yes",
        "lab/cli/stores.py",
        "forget_files",
        "for plan in plans.values() if delete else ():",
        "for plan in plans.values():",
    ),
    Break("wrong-usage-exits-as-a-failure", "lab/cli/terminal.py", "exit_code", "return WRONG_USAGE", "return FAILED"),
    Break(
        "demo-reads-files-outside-its-folder",
        "lab/demo.py",
        "Folder._lines",
        "file.is_relative_to(self._root) and file.suffix",
        "file.suffix",
    ),
)
