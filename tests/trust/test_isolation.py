"""No user's, app's or session's words are found with another: in requests, tool answers, memories, files, pages.

An owner is an app, a user and a session. What is planted is of a session alone, or of a user where memory carries it
from one session to the next. The model does what its user tells it: it reads addresses that it was never shown, too.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from browsing import Browser
from google.adk.agents import BaseAgent, LlmAgent, ParallelAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.apps import App
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools import ToolContext, load_memory
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from scripted import call, exact, size
from teams import DEPRECATED
from writers import Writer

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin, FsspecArtifactService, HybridMemoryService

pytestmark = DEPRECATED

Figure = Callable[[str, float], None]

_TOKEN = re.compile(r"tok[0-9a-f]{12}")
_NAME = re.compile(r"I am (tok[0-9a-f]{12})")
_TASK = re.compile(r"^DO (\S+) (\[.*\])$", re.MULTILINE)
ADDRESS = re.compile(r"artifact://(?:evidence|messages)/[0-9a-f]{16}\.[a-z]{2,4}")
_ABOUT = "the badge code of the guest in the north wing"


Step = tuple[str, Mapping[str, Any]]
"""The name and the arguments of a call."""


@dataclass(frozen=True)
class Owner:
    """Who says something, and the words that stand in it."""

    app: str
    user: str
    session: str

    @property
    def of_session(self) -> str:
        """Stands in what only this session may know: its tools' results, artifacts, plan and notes."""
        return _token(self.app, self.user, self.session)

    @property
    def of_user(self) -> str:
        """Stands in what is said and remembered."""
        return _token(self.app, self.user)


def _token(*names: str) -> str:
    return f"tok{hashlib.sha256(json.dumps(names).encode()).hexdigest()[:12]}"


def task(owner: Owner, number: int, steps: Sequence[Sequence[Step]]) -> str:
    """The line that tells the model what to do."""
    return f"DO {owner.of_session.replace('tok', 'run')}-{number} {json.dumps(steps)}"


def tokens(text: str) -> set[str]:
    return set(_TOKEN.findall(text))


class Obedient(BaseLlm):
    """Makes the calls that the last user message lists, step by step, then answers it by its name."""

    model: str = "gemini-2.5-flash"
    done: Counter[str] = Counter()

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        texts = [one.text for content in llm_request.contents for one in content.parts or () if one.text]
        parts = [types.Part(text=f"It is done for {' '.join(_NAME.findall(texts[-1]))}: {_ABOUT}.")]
        for run, steps in _TASK.findall("\n".join(texts))[-1:]:
            todo, at = json.loads(steps), self.done[run]
            self.done[run] += 1  # results may have been cut, and cannot be counted in the request
            if at < len(todo):
                parts = [call(name, **given) for name, given in todo[at]]
        read = size(llm_request)
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=read, candidates_token_count=7, total_token_count=read + 7
        )
        yield LlmResponse(content=types.Content(role="model", parts=parts), usage_metadata=usage)


class Listener(BasePlugin):
    """Keeps what each request of an owner holds, as text, where it holds another's words."""

    def __init__(self, tenants: Tenants) -> None:
        super().__init__(name="listener")
        self.tenants = tenants

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        owner = _owner(callback_context)
        assert owner.session == callback_context.session.id or callback_context.agent_name == "expert"
        text = exact(llm_request.config) + "".join(exact(content) for content in llm_request.contents)
        self.tenants.look(owner, text, f"a request to {callback_context.agent_name}")
        self.tenants.shown.setdefault(owner, set()).update(ADDRESS.findall(text))


@dataclass
class Tenants:
    """Apps with one plugin, one store, and one service of each kind. ``found`` are words in the wrong place."""

    folder: Path
    owners: Sequence[Owner]
    policy: PackPolicy = field(
        default_factory=lambda: PackPolicy(
            max_input_tokens=5_000, offload={"extract_tokens": 480}, compress={"summarizer": "writer-1"}
        )
    )
    found: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    runs: int = 0

    def __post_init__(self) -> None:
        self.store = PackStore(str(self.folder / "packs"))
        self.artifacts = FsspecArtifactService(str(self.folder / "artifacts"))
        self.memory = HybridMemoryService(self.folder / "memories.sqlite", embedder="none")
        self.sessions = InMemorySessionService()
        self.shown: dict[Owner, set[str]] = {}
        self.begin()

    def begin(self) -> None:
        """Makes plugin and runners, as a process that begins does."""
        self.writer = Writer(asked=[], requests=[])
        self.plugin = ContextPackPlugin(policy=self.policy, store=self.store, on_error="raise", summarizer=self.writer)
        self.runners: dict[str, Runner] = {}
        for at, name in enumerate(dict.fromkeys(owner.app for owner in self.owners)):
            app = App(name=name, root_agent=_agent(at), plugins=[self.plugin, Listener(self)])
            self.runners[name] = Runner(
                app=app, session_service=self.sessions, artifact_service=self.artifacts, memory_service=self.memory
            )

    def planted(self) -> bool:
        """Whether every owner's words were seen: what was never planted is never found."""
        return self.seen == {word for owner in self.owners for word in (owner.of_session, owner.of_user)}

    def look(self, owner: Owner, text: str, where: str) -> None:
        """Notes words of others in a text."""
        own = {owner.of_session, owner.of_user}
        self.seen |= own & tokens(text)
        self.found += [f"{where} of {owner} holds {token}" for token in sorted(tokens(text) - own)]

    async def tell(self, owner: Owner, *steps: Sequence[Step], remember: bool = False) -> None:
        """Runs one message of an owner, and looks at its events, its session and what it may remember."""
        where = {"user_id": owner.user, "session_id": owner.session}
        if await self.sessions.get_session(app_name=owner.app, **where) is None:
            await self.sessions.create_session(app_name=owner.app, **where, state=_state(owner))
        text = f"I am {owner.of_user} and ask for {_ABOUT}. {'It is urgent. ' * 40}\n{task(owner, self.runs, steps)}"
        async for event in self.runners[owner.app].run_async(**where, new_message=types.UserContent(text)):
            for content in [event.content] if event.content else []:
                self.look(owner, exact(content), "an event")
        self.runs += 1
        session = await self.sessions.get_session(app_name=owner.app, **where)
        assert session is not None
        self.look(owner, session.model_dump_json(), "a session")
        if remember:
            await self.memory.add_session_to_memory(session)
            entry = MemoryEntry(content=types.UserContent(f"{owner.of_user} likes {_ABOUT}"))
            who = {"app_name": owner.app, "user_id": owner.user}
            await self.memory.add_memory(**who, memories=[entry], custom_metadata={"kind": "preference"})
        response = await self.memory.search_memory(app_name=owner.app, user_id=owner.user, query=_ABOUT)
        self.look(owner, response.model_dump_json(), "a memory")

    def guesses(self, owner: Owner) -> list[str]:
        """Addresses under which an owner might find what another has."""
        found = []
        for other in self.owners:
            if other == owner:
                continue
            app, user, session = other.app, other.user, other.session
            found += [
                f"artifact://apps/{app}/users/{user}/sessions/{session}/artifacts/secret.txt/versions/0",
                f"artifact://apps/{app}/users/{user}/artifacts/user:secret.txt/versions/0",
                f"artifact://../{session}/secret.txt",
                f"artifact://../../{user}/{session}/secret.txt",
                f"artifact://{quote(f'../../{user}/{session}', safe='')}/secret.txt",
                f"artifact://%252e%252e/{session}/secret.txt",
                f"artifact://user:{user}/secret.txt",
                f"artifact://./secret.txt/../../{session}/secret.txt",
                f"file://{self.store.files.place(app, user, session)}",
                *sorted(self.shown.get(other, ()))[:4],
            ]
        return found

    def at_rest(self) -> None:
        """Looks at what the writer of summaries was asked, and at all that is on the disk below an owner's folders."""
        for items in self.writer.asked:
            users = {
                (one.app, one.user) for one in self.owners if {one.of_user, one.of_session} & tokens(json.dumps(items))
            }
            self.found += [f"a summary is of {users}"] * (len(users) > 1)
        for owner in self.owners:
            own = {one.of_session for one in self.owners if (one.app, one.user) == (owner.app, owner.user)}
            for files in (self.store.files, self.artifacts._artifacts._files):
                for name, text in _texts(files, files.place(owner.app, owner.user)):
                    foreign = tokens(text) - own - {owner.of_user}
                    self.found += [f"{name} of {owner} holds {token}" for token in sorted(foreign)]
                for name, text in _texts(files, files.place(owner.app, owner.user, owner.session)):
                    self.look(owner, text, name)


def _texts(files: Any, folder: str) -> Iterator[tuple[str, str]]:
    for file in files.below(folder):
        data = files.read(file.path)
        yield file.path, (gzip.decompress(data) if file.path.endswith(".gz") else data).decode("utf-8", "replace")


def _state(owner: Owner) -> dict[str, Any]:
    """A plan, notes and evidence with the session's word."""
    word = owner.of_session
    step = {"id": "1", "text": f"Find {_ABOUT}: {word}", "acceptance": [f"The code is named ({word})"]}
    known = f"{_ABOUT} is {word}"
    return {
        "session": owner.session,
        "plan": {"task_id": "7", "task": f"Serve {word}", "goal": f"{word} is served", "step": step},
        "knowledge": {
            "notes": [{"text": known}],
            "memories": [{"text": f"Once {known}"}],
            "evidence": [{"uri": f"artifact://noted-{word}.txt", "summary": known}],
        },
    }


def _owner(context: CallbackContext | ToolContext) -> Owner:
    """The owner of a call. An agent that runs as a tool has a session of its own, and the state of its caller's."""
    return Owner(context.session.app_name, context.session.user_id, context.state["session"])


def fetch(name: str, tool_context: ToolContext) -> dict[str, Any]:
    """Reads a list that is long."""
    word = _owner(tool_context).of_session
    return {"result": "\n".join(f"{at}: {_ABOUT} is {word} in {name}" for at in range(60))}


def ask(question: str, tool_context: ToolContext) -> str:
    """Answers a question in short."""
    return f"{_ABOUT} is {_owner(tool_context).of_session}"


async def keep(name: str, tool_context: ToolContext) -> str:
    """Keeps an artifact of the session, and one of the user."""
    owner = _owner(tool_context)
    try:
        await tool_context.save_artifact(name, types.Part(text=f"{_ABOUT} is {owner.of_session}\n" * 40))
        await tool_context.save_artifact(f"user:{name}", types.Part(text=f"{_ABOUT} is {owner.of_user}\n" * 40))
    except Exception as error:  # some ids are none by which artifacts can be kept
        return f"not kept: {type(error).__name__}"
    return "kept"


def _agent(at: int) -> BaseAgent:
    tools = [fetch, ask, keep, load_memory]
    expert = LlmAgent(
        name="expert", model=Obedient(done=Counter()), description="Knows more.", instruction="You know.", tools=tools
    )
    agents = [
        LlmAgent(
            name=name, model=Obedient(done=Counter()), instruction="You help.", tools=[*tools, AgentTool(agent=expert)]
        )
        for name in ("clerk", "second")[: 1 + at % 2]
    ]
    return ParallelAgent(name="both", sub_agents=agents) if at % 2 else agents[0]


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
        pytest.param(ODD[::13], 1, id="some odd"),
        pytest.param(PLAIN, 2, id="plain", marks=pytest.mark.soak),
        pytest.param(ODD[::2], 1, id="odd", marks=pytest.mark.slow),
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
