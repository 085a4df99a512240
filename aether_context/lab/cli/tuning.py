"""`aether-context tune`: a verdict and a policy for each profile, from recorded sessions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from aether_context import __version__
from aether_context.canonical import JSON, hash_json, short
from aether_context.lab.cli import packs
from aether_context.lab.cli.terminal import FAILED, NOT_THERE, head, print_json, print_table, progress, say, say_error
from aether_context.lab.tuning.simulation import Change
from aether_context.lab.tuning.tuner import Recordings, Tuner, executor, grid
from aether_context.lab.tuning.verdict import Compared, TuningVerdict, adjusted, checked
from aether_context.policy import PackPolicy, differing, merged
from aether_context.store import PackStore

_MOST_CALLS = 5


def tune(
    urls: tuple[str, ...],
    stores: tuple[str, ...],
    profiles: tuple[str, ...],
    base: str | None,
    seed: int,
    margin: float,
    spend: float,
    jobs: int | None,
    scheduler: str | None,
    output: Path | None,
    everything: bool,
    as_json: bool,
) -> int:
    urls = urls + stores or (os.environ.get("AETHER_CONTEXT_STORE") or "artifacts",)
    base_policy = None if base is None else PackPolicy.load(base)
    with executor(jobs, scheduler) as workers:
        tuner = Tuner(urls, workers, base=base_policy, seed=seed, advance=partial(progress, noun="sessions"))
        found = [tuner.recordings(profile) for profile in dict.fromkeys(profiles) or tuner.profiles]
        verdicts = adjusted([tuner.tune(recordings, margin=margin, spend=spend) for recordings in found])
    results = list(zip(found, verdicts, strict=True))
    if as_json:
        print_json([_json(tuner, recordings, verdict) for recordings, verdict in results])
    for recordings, verdict in results:
        if not as_json:
            _show(tuner, recordings, verdict, everything)
        if output is not None and verdict.kind == "no change":
            say_error(f"no policy is written for {recordings.profile}: no change")
        elif output is not None:
            output.mkdir(parents=True, exist_ok=True)
            path = output / f"{recordings.profile}.toml"
            origin = f"{', '.join(urls)}, seed {seed}, margin {margin:g}"
            path.write_text(policy_file(recordings, verdict, origin), encoding="utf-8")
            say_error(f"{path} holds the policy and what it stands on")
    return 0


def check(
    url: str, jobs: int | None, max_cost: float, min_answered: float, everything: bool, as_json: bool, **options: Any
) -> int:
    policy, instruction = options["policy"], options["instruction"]
    options |= {"policy": policy and PackPolicy.load(policy), "instruction": instruction and instruction.read()}
    urls = [packs.require(PackStore(url)).url]
    with executor(jobs) as workers:
        tuner = Tuner(urls, workers, advance=partial(progress, noun="sessions"))
        all_recordings = [tuner.recordings(profile) for profile in tuner.profiles]
        checks = [tuner.check(recordings, Change(**options)) for recordings in all_recordings]
    verdicts = [checked(compared, max_cost, min_answered, len(checks)) for compared, _ in checks]
    rows = list(zip(all_recordings, verdicts, (calls for _, calls in checks), strict=True))
    if as_json:
        print_json([_json(tuner, it, v) | {"worst": [call._asdict() for call in calls]} for it, v, calls in rows])
    for recordings, verdict, calls in rows if not as_json else ():
        _show(tuner, recordings, verdict, everything)
        for call in calls[: None if everything else _MOST_CALLS * (verdict.kind == "loses")]:
            say(f"  {call.words}")
    if any(tuner.calls.values()) and any(verdict.kind == "loses" for verdict in verdicts):
        return FAILED
    return NOT_THERE if tuner.unusable else 0


def _show(tuner: Tuner, recordings: Recordings, verdict: TuningVerdict, everything: bool) -> None:
    profile = recordings.profile
    head(f"{profile}: {verdict}")
    for name, problem in tuner.unusable.items():
        say_error(f"left out: {name}: {problem}")
    if not everything:
        return
    say(f"{len(recordings.searched) + len(recordings.tested)} sessions of the profile {profile}")
    say(f"{tuner.same[profile]} of {tuner.calls[profile]} requests are built again byte for byte")
    if recordings.others:
        say(f"recorded under {1 + len(recordings.others)} policies: what differs stays as recorded without --from")
    rows = []
    tested = {} if verdict.check is None else {f"tested: {verdict.chosen}": verdict.check}
    for name, compared in {**verdict.trials, **tested}.items():
        figures = compared.cost.text("%"), compared.retention.text(""), f"{compared.bill:+.1f}%"
        rows.append((name, compared.sessions, compared.cost.sessions, *figures, f"{compared.weight:.1f}"))
    columns = ("policy", ">sessions", ">that count", ">cost", ">retention", ">bill", ">effective in the bill")
    print_table(columns, rows)


def _json(tuner: Tuner, recordings: Recordings, verdict: TuningVerdict) -> dict[str, JSON]:
    def figures(compared: Compared) -> dict[str, JSON]:
        means = {"cost_percent": compared.cost.to_json(), "retention_points": compared.retention.to_json()}
        answered = {"answered_points": compared.answered.to_json()} if compared.answered.sessions else {}
        bill = {"bill_percent": compared.bill, "effective_sessions_of_bill": compared.weight}
        return {**means, **answered, **bill, "sessions": compared.sessions}

    return {
        "profile": recordings.profile,
        "verdict": verdict.kind,
        "reason": verdict.reason,
        "chance": verdict.chance,
        "chosen": verdict.chosen,
        "tested": None if verdict.check is None else figures(verdict.check),
        "played": {name: figures(trial) for name, trial in verdict.trials.items()},
        "left_out": dict(tuner.unusable),
    }


def policy_file(recordings: Recordings, verdict: TuningVerdict, origin: str) -> str:
    """The policy of a verdict that changes it as TOML, headed by what it stands on."""
    profile, policy = recordings.profile, grid(recordings.base)[str(verdict.chosen)]
    names = sorted(folder.name for folder in (*recordings.searched, *recordings.tested))
    head = [f"{profile}: {verdict}"]
    if verdict.check is not None:
        head.append(f"On {verdict.check}; chance {verdict.chance:.4f}")
    head.append(f"{len(names)} sessions ({short(hash_json(names))}) of {origin}, from policy {short(policy.digest)}")
    values = policy.model_dump(mode="json")
    usual = differing(values, PackPolicy.load(profile, preset=policy.preset).model_dump(mode="json"))
    # Also what was changed to the usual value: a check of the file has the recorded policy beneath it.
    settings = merged(differing(values, recordings.base.model_dump(mode="json")), usual)
    settings |= {"profile": profile, "preset": policy.preset}
    lines = [f"# Tuned by aether-context {__version__}", *(f"# {line}" for line in "\n".join(head).splitlines())]
    return "\n".join([*lines, tomli_w.dumps(_without_none(settings))])


def _without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that TOML can hold: it has no null."""
    values = {name: value for name, value in settings.items() if value is not None}
    return {name: _without_none(value) if isinstance(value, dict) else value for name, value in values.items()}
