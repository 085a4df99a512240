"""`usage --by tool`: the declarations and results of each tool, over all calls, against what was sent."""

from __future__ import annotations

from collections import Counter

import pytest
from browsing import Browser
from scripted import Chat, call, look_up, send_mail, was_cut
from terminal import run, told

from aether_context import PackPolicy
from aether_context.lab.reading import read_view
from aether_context.store.replay import Replayer


def talk() -> Chat:
    script = [call("look_up", key="a"), "one", call("send_mail", to="ann"), call("look_up", key="b"), "two", "three"]
    chat = Chat(script=script, tools=[look_up, send_mail], policy=PackPolicy(max_input_tokens=600))
    chat.say("First?", "Second?", "Third?", "Fourth?")
    return chat


def test_each_tool_has_its_declarations_and_results_as_they_were_sent() -> None:
    chat = talk()
    assert any(map(was_cut, chat.manifests()))
    declared, results, replayer = Counter[str](), Counter[str](), Replayer(chat.store)
    for manifest in chat.manifests():
        reported = (chat.store.outcome(manifest) or {})["input_tokens"]
        per_token = reported / manifest.counted_tokens
        for piece in read_view(replayer, manifest).request or ():
            if piece.part == "tool":
                declared[piece.name] += piece.tokens * per_token
            for name in ("look_up", "send_mail"):
                results[name] += piece.tokens * per_token * piece.text.startswith(f"response {name}:")
    tools = {one["tool"]: one for one in told("usage", "--by", "tool", store=chat.store)["tools"]}
    assert {name: one["declared"] for name, one in tools.items()} == pytest.approx(declared, abs=5)
    assert {name: tools[name]["results"] for name in results} == pytest.approx(results, abs=5)
    assert results["look_up"] > results["send_mail"] > 0
    usage = told("usage", store=chat.store)["all"]
    shares = [(one["declared"] + one["results"]) / usage["input_tokens"] for one in tools.values()]
    answers = usage["output_tokens"] * 2.5 / 1e6
    costs = [one["cost_usd"] / (usage["cost_usd"] - answers) for one in tools.values()]
    assert costs == pytest.approx(shares, abs=0.02), "each has the price of its share, a third of all being cached"


def test_people_see_a_table_and_the_viewer_has_one() -> None:
    chat = talk()
    lines = run("usage", "--by", "tool", store=chat.store).stdout.splitlines()
    assert lines[0].split() == ["tool", "requests", "declared", "results", "cost"]
    name, calls, declared, results, cost = lines[1].split()
    assert (name, calls) == ("look_up", str(len(chat.manifests())))
    page = Browser(chat.store).open("/session?app=shop&user=ann&session=s1").text
    assert f"{name} {calls} {declared} {results} {cost}" in " ".join(page.split())
    assert "--by tool stands alone" in run("usage", "--by", "tool", "--by", "day", store=chat.store, code=2).stderr
