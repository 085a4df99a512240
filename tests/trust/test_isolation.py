"""No user's, app's or session's words are found with another: in requests, tool answers, memories, files, pages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest
from browsing import Browser
from teams import DEPRECATED
from tenants import Owner, Step, Tenants, task, tokens

pytestmark = DEPRECATED

Figure = Callable[[str, float], None]

PLAIN = [Owner(app, user, session) for app in ("shop", "Shop") for user in ("Ann", "ann") for session in ("s1", "S1")]
MANY = [Owner(one.app, one.user, f"{one.session}-{at}") for at in range(10) for one in PLAIN]
ODD_USERS = [
    "ann.", "ann ", " ", "\t", "..", ".", "a/b", "a\\b", "a%2Fb", "a%2fb", "../ann", "ann/..", "packs", "blobs",
    "evidence", "artifacts", "CON", "con", "name.json", "*", "user:ann", "ünï", "u\u0308ni\u0308", "🙂", "x" * 300,
    "x" * 299, "ann\0", "ann\n",
]  # fmt: skip
ODD_SESSIONS = ["packs", "..%2Fs1", "../s1", "evidence", "CON", "s1/..", "y" * 300, "s1~", "SS", "ß"]
ODD = [
    *(Owner("shop", user, "s1") for user in ODD_USERS),
    *(Owner("evidence", "ann", session) for session in ODD_SESSIONS),
]


def first(owner: Owner) -> Sequence[Sequence[Step]]:
    """What plants an owner's words everywhere."""
    return [
        [("fetch", {"name": "the list"}), ("ask", {"question": "Which code is it?"})],
        [("keep", {"name": "secret.txt"})],
        [("expert", {"request": f"Read on.\n{task(owner, -1, [[('fetch', {'name': 'what the expert reads'})]])}"})],
    ]


def later(guesses: Sequence[str], number: int) -> Sequence[Sequence[Step]]:
    """What looks for others' words under addresses of theirs, and for its own."""
    reads: list[Step] = [("read_artifact", {"uri": uri}) for uri in guesses]
    reads += [("search_artifact", {"uri": uri, "query": "badge code"}) for uri in guesses[::3]]
    return [
        reads,
        [("load_memory", {"query": "badge code of the guest"}), ("read_artifact", {"uri": "artifact://secret.txt"})],
        [("fetch", {"name": f"list {number}"})],
    ]


async def serve(tenants: Tenants, rounds: int, seed: int = 0) -> None:
    """Plants words, then lets all look for others' words: at once, one after the other, and in a new process."""
    choice = random.Random(seed)

    async def told(owner: Owner, number: int) -> None:
        guesses = tenants.guesses(owner)
        await tenants.tell(owner, *later(choice.sample(guesses, min(10, len(guesses))), number))

    await asyncio.gather(*(tenants.tell(owner, *first(owner), remember=True) for owner in tenants.owners))
    for number in range(1, rounds + 1):
        if number % 2:
            await asyncio.gather(*(told(owner, number) for owner in tenants.owners))
            await tenants.plugin.close()
            tenants.begin()
        else:
            for owner in tenants.owners:
                await told(owner, number)
    for runner in tenants.runners.values():
        await runner.close()


def pages(tenants: Tenants) -> None:
    """Looks at the page of each owner's session and of its last pack."""
    browser = Browser(tenants.store)
    for owner in tenants.owners:
        whose = {"app": owner.app, "user": owner.user, "session": owner.session}
        page = browser.open(f"/session?{urlencode(whose)}")
        assert page.status == 200
        tenants.look(owner, unescape(page.html), "a page")
        last = browser.open(page.leads(r"/pack/pack_[^#]+$")[-1])
        assert owner.of_user in tokens(last.html)
        tenants.look(owner, unescape(last.html), "a page")


@pytest.mark.parametrize(
    ("owners", "rounds"),
    [
        pytest.param(PLAIN, 2, id="plain"),
        pytest.param(ODD[::2], 1, id="odd"),
        pytest.param(MANY, 7, id="plain, long", marks=pytest.mark.soak),
        pytest.param(ODD, 9, id="odd, long", marks=pytest.mark.soak),
    ],
)
def test_no_words_of_another_are_found(owners: Sequence[Owner], rounds: int, tmp_path: Path, figure: Figure) -> None:
    tenants = Tenants(tmp_path, owners)
    asyncio.run(serve(tenants, rounds))
    tenants.at_rest()
    pages(tenants)
    figure("isolation_runs", tenants.runs)
    figure("foreign", len(tenants.found))
    assert tenants.found == []
    assert all(tenants.shown[owner] for owner in owners), "no addresses were there to be guessed"
    assert tenants.planted()
