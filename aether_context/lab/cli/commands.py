"""The commands, their options and exit codes.

    0    fine
    1    a check failed, or what was compared differs
    2    wrong usage
    3    something is not there, or the store cannot be read

A command is described here, and run by the function that `_command` names: it is given the options by name, prints, and
returns the exit code. It is imported when the command runs, so that ``--help`` takes a tenth of a second, and a command
loads only what it needs.
"""

from __future__ import annotations

import functools
import io
import math
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from aether_context import __version__
from aether_context.errors import AetherContextError

_Command = TypeVar("_Command", bound=Callable[..., Any])


_EVERYDAY = ("demo", "doctor", "list", "inspect", "why", "usage", "serve")


class _Commands(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in ("Every day", _EVERYDAY), ("Now and then", sorted({*self.commands} - {*_EVERYDAY})):
            with formatter.section(title):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(formatter.width - 18)) for name in names]
                )

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            code = super().invoke(ctx)
        except AetherContextError as error:
            from aether_context.lab.cli.terminal import exit_code, say_error

            say_error(f"Error: {error}")
            code = exit_code(error)
        except KeyboardInterrupt:
            from aether_context.lab.cli.terminal import STOPPED, progress

            line_end = "\n" if sys.stderr.isatty() else ""  # behind the figures and the terminal's own ^C
            click.echo(f"{line_end}stopped{f' after {progress.reached}' if progress.reached else ''}", err=True)
            code = STOPPED
        ctx.exit(code or 0)


class _Amount(click.FloatRange):
    """A number of at least 0. "nan" is refused, which a range alone would accept."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


def _bound(context: click.Context, option: click.Parameter, text: str) -> float:
    """A change with its sign, such as ``+2%`` or ``-1``."""
    number: float = click.FLOAT(text.removesuffix("%"), option, context)
    return number


def _examples(*lines: str) -> str:
    """An epilog whose lines click does not wrap."""
    return "\n".join(["\b", "Examples:", *(f"  aether-context {line}" for line in lines)])


def _command(run: str, *examples: str) -> Callable[[Callable[[], None]], click.Command]:
    """A command with the name that its examples begin with, run by a ``module.function`` of this package."""

    def of(description: Callable[[], None]) -> click.Command:
        @functools.wraps(description)
        def invoke(**options: Any) -> Any:
            if "operand" in options:
                _find_store(options)
            module, _, function = run.partition(".")
            return getattr(import_module(f"aether_context.lab.cli.{module}"), function)(**options)

        return main.command(examples[0].split()[0], epilog=_examples(*examples))(invoke)

    return of


_PACK = re.compile(r"latest|[0-9a-f]+|\d{8}T.*|pack_.*")
"""The words that may name a pack. Any other operand in the place of one is the store."""


def _may_be_pack(word: str) -> bool:
    """Tells whether an operand may name a pack; a folder's name in hex digits is the store, but for a call's number."""
    return _PACK.fullmatch(word) is not None and (word.isdecimal() or not Path(word).is_dir())


def _find_store(options: dict[str, Any]) -> None:
    """Takes the store from the last operand, unless ``--store`` names it or the operand stands for a pack and may."""
    is_named = click.get_current_context().get_parameter_source("url") is ParameterSource.COMMANDLINE
    if options["operand"] and "pack_ids" in options and (is_named or _may_be_pack(options["operand"])):
        options |= {"pack_ids": (*options["pack_ids"], options["operand"]), "operand": None}
    name = next(filter(options.get, ("operand", "after", "before", "pack")), None)
    if name == "operand" and is_named:
        raise click.UsageError("the store is named twice: by --store and by its place")
    if name == "operand" or (name and not is_named and not _may_be_pack(options[name])):
        options |= {"url": options[name], name: None}
    del options["operand"]


def _json_option(meaning: str) -> Callable[[_Command], _Command]:
    return click.option("--json", "as_json", is_flag=True, help=meaning)


def _packs_of(command: _Command) -> _Command:
    """Adds the options that select packs by application, user and session."""
    command = click.option("--session", metavar="ID", help="This session only.")(command)
    command = click.option("--user", metavar="ID", help="This user only.")(command)
    return click.option("--app", metavar="NAME", help="This application only.")(command)


def _store_option(command: _Command) -> _Command:
    """Adds the ways to name a store: an option, and the place behind all other operands."""
    command = click.argument("operand", required=False, metavar="[STORE]")(command)
    return click.option(
        "--store",
        "url",
        metavar="URL",
        envvar="AETHER_CONTEXT_STORE",
        default="artifacts",
        show_envvar=True,
        help="The store of packs: a folder or any fsspec URL. STORE names it, too.",
    )(command)


def _stored_packs(command: _Command) -> _Command:
    """Adds the options that name a store and select packs of it."""
    return _store_option(_packs_of(command))


_session_option = click.option("--session", metavar="ID", help="The session whose calls are numbered; else the newest.")
_all_option = click.option("--all", "everything", is_flag=True, help="Every row and every line, however many.")


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog=_examples("demo", "doctor", "list", "inspect", "verify --replay", "inspect --help"),
)
@click.version_option(__version__, prog_name="aether-context")
def main() -> None:
    """Shows what an agent's model got to read at each call, what was left out, and why.

    Packs are recorded by the plugin `aether_context.adk.ContextPackPlugin`.

    Exit codes: 0 fine, 1 a check failed or two packs differ, 2 wrong usage, 3 something is not there or the store
    cannot be read, 130 stopped by Ctrl-C.
    """


@_command("doctor.show_findings", "doctor", "doctor s3://bucket/packs", "doctor --json")
@_store_option
@_json_option("The same as JSON.")
def doctor() -> None:
    """Tells whether it works: versions, extras, the store, and what the newest twenty packs could not do as asked.

    It writes an empty file into the store and deletes it again. The exit code is 1 where it finds a problem.
    """


@_command("packs.show_list", "list", "list --limit 20", "list --store s3://bucket/packs --app shop --json")
@_stored_packs
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The N newest packs only.")
@_json_option("A JSON list, an object for each pack.")
def list_packs() -> None:
    """Lists packs, the oldest first."""


@_command("inspection.show_pack", "inspect", "inspect 23", "inspect 9f86d081 --all", "inspect --json | jq .rows")
@click.argument("pack", required=False)
@_store_option
@_session_option
@_all_option
@_json_option("The manifest as JSON, completed from its session's log.")
def inspect() -> None:
    """Shows one pack: budgets, candidates and what became of them, cuts, and what a prefix cache could serve.

    PACK is the number of a call in its session, or a pack's id, or the beginning or the hash of one. Without it the
    newest pack is shown.

    A layer's tokens are nominal before it lends or borrows; lent is what it borrowed, and below 0 what it lent. The
    reason high_water says that the request would have passed its budget, or the mark that compact_at sets. A
    candidate's mmr is its similarity less its likeness to those chosen before it. In the scope prune only the tools
    that the step names are declared.
    """


@_command("inspection.show_replay", "replay 23", "replay 9f86d081 --policy my.toml --all")
@click.argument("pack", required=False)
@_store_option
@_session_option
@click.option(
    "--policy", metavar="FILE|PROFILE", help="Show what this policy would have sent instead, from the same input."
)
@_all_option
@_json_option("The request as canonical JSON; with --policy, what `diff --json` gives.")
def replay_command() -> None:
    """Builds a pack's request again, by default that of the newest, checks it against the checksum, and prints it.

    The exit code is 1 where the request differs from the recorded one, or where `verify` refuses the pack.

    Another policy changes what it names: all other settings stay the recorded ones, and so does the window of a model
    for which it names none. What earlier calls had cut stays cut.
    """


@_command("inspection.show_difference", "diff", "diff 22 23 --all", "diff 9f86d081 latest --json")
@click.argument("before", required=False, metavar="[PACK]")
@click.argument("after", required=False, metavar="[OTHER]")
@_store_option
@_session_option
@_all_option
@_json_option("The whole comparison as a JSON object, with every piece of both requests.")
def diff() -> None:
    """Shows how two packs differ: layers, candidates, texts, and the character at which their common prefix ends.

    A single PACK, by default the newest one, is compared with the pack before it of the same agent. `replay --policy`
    shows what another policy would have sent.

    The exit code is 3 also where a pack is not what was written.
    """


@_command("inspection.show_places", 'why "blue kayak"', 'why "blue kayak" --session s1 --call 23 --agent billing')
@click.argument("text")
@_stored_packs
@click.option("--agent", help="This agent only.")
@click.option("--call", type=click.IntRange(min=1), metavar="N", help="The call with this number only.")
@_all_option
@_json_option("The same as JSON.")
def why_command() -> None:
    """Tells why each agent's model saw some words, or did not.

    TEXT is looked for in everything that a session's packs know: messages, tool calls and results, also those that
    were taken out of requests, memories, notes, evidence, instructions and summaries. For each place it says at which
    calls the words were in the request, in which form, and what took them out. For an agent that lost them it plays the
    session again under settings that may keep them, in at most 500 packs, or in as many as it takes with --all.

    Without --session the session of the newest pack is looked at, with those of the agents that ran as its tools. The
    exit code is 1 where no call knew the words.
    """


@_command("regrets.show_regrets", "regrets", "regrets --session s1", "regrets --app shop --json")
@_stored_packs
@_json_option("The same as JSON.")
def regrets_command() -> None:
    """Tells what cuts had taken and came back: fetched, asked again by the same tool call, or said again by a person.

    For each text it names the cut, the tokens and price of what came anew, and the cheapest setting that keeps the
    text when the session is played again, in at most 500 packs. A message says another one again where it has at least
    four of its words and 80% of them. It needs packs with record = "full".
    """


@_command("stores.show_verification", "verify", "verify --replay", "verify 9f86d081", "verify --session s1 --json")
@click.argument("pack_ids", nargs=-1, metavar="[PACK]...")
@_stored_packs
@click.option("--replay", "replays", is_flag=True, help="Also build each request again, and compare it and its rows.")
@_json_option("A JSON object with what was found.")
def verify_command() -> None:
    """Checks that a store holds what was written: every byte of every file, and all that manifests name.

    A pack whose request is larger than its window fails as well. Without a PACK all packs are checked. The exit code
    is 1 where anything failed.
    """


@_command(
    "inspection.show_preview",
    "preview session.json",
    'preview session.json --message "Go on." --policy research --request',
    "preview refunds.evalset.json --case late_refund",
)
@click.argument("path", metavar="SESSION.json")
@click.option("--case", metavar="ID", help="The case of an evalset; else its first.")
@click.option("--message", metavar="TEXT", help="The user's next message.")
@click.option("--policy", metavar="FILE|PROFILE", help="The policy; else AETHER_CONTEXT_POLICY, else chat.")
@click.option("--window", type=click.IntRange(min=256), metavar="N", help="The window in tokens.")
@click.option("--model", default="gemini-flash-latest", help="The model's name; it is not called.")
@click.option("--agent", "agent_name", metavar="NAME", help="The agent that is called; else the session's last one.")
@click.option("--system", metavar="TEXT", default="", help="The agent's instruction.")
@click.option("--request", is_flag=True, help="The request itself, not its description.")
@_all_option
@_json_option("The manifest as JSON; with --request, the request.")
def preview_command() -> None:
    """Shows the pack that a session's next model call would be sent. No model is called and the session is not touched.

    SESSION.json is a file from `Session.model_dump_json()` or ADK's web page, or an ADK evalset. Where the session
    waits for a user's message and --message gives none, a placeholder is used. Tools are unknown here, and memories are
    not searched.
    """


@_command(
    "tuning.tune",
    "tune -o policies",
    "tune --store s3://bucket/packs --profile research --spend 5 --scheduler tcp://scheduler:8786",
)
@click.argument("urls", nargs=-1, metavar="[STORE]...")
@click.option("--store", "stores", multiple=True, metavar="URL", help="A store of packs; can be repeated.")
@click.option("--profile", "profiles", multiple=True, help="A profile to tune; can be repeated; else all recorded.")
@click.option("--from", "base", metavar="FILE|PROFILE", help="The policy to start from; else the recorded ones.")
@click.option("--seed", type=int, default=0, help="Seed of the halves and of the intervals.")
@click.option("--margin", type=_Amount(0), default=1.0, help="Points of retention and percent of cost to disregard.")
@click.option("--spend", type=_Amount(0), default=0.0, help="Percent of cost allowed for more retention.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Number of processes; by default one per core.")
@click.option("--scheduler", metavar="ADDRESS", help="A Dask scheduler whose workers reach the stores.")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Writes the policy of each profile that changes there, as PROFILE.toml.",
)
@_all_option
@_json_option("A JSON list, an object for each profile.")
def tune_command() -> None:
    """Tunes the budgets of each task profile on recorded sessions, and says "no change" where it finds nothing better.

    The first line says what to do, and --all the rest. The sessions of each store are simulated from their first call
    on, with the recorded answers, under a grid of policies with other shares of evidence, memory and conversation,
    other cuts, and other numbers of memories. Settings in which agents differ stay as recorded. One policy is chosen on
    half of the sessions and tested on the other half, by cost, with cached input at the model's price, and by
    retention: the share of what answers used that was in the request. Whether an agent does its task is not measured.
    """


@_command(
    "tuning.check",
    "check --policy policies/chat.toml",
    "check --instruction new.txt --agent clerk --max-cost +5% --min-answered -2",
    "check s3://bucket/packs --without-tool search_web --json",
)
@_store_option
@click.option("--policy", metavar="FILE|PROFILE", help="What this policy names changes.")
@click.option("--instruction", type=click.File(encoding="utf-8"), metavar="FILE", help="The instruction, filled in.")
@click.option("--model", metavar="NAME", help="This model is called.")
@click.option("--without-tool", "without", multiple=True, metavar="NAME", help="This tool goes; can be repeated.")
@click.option("--agent", metavar="NAME", help="The agent that instruction, model and tools change for; else all.")
@click.option("--max-cost", callback=_bound, metavar="PERCENT", default="+2%", help="Most change of a session's cost.")
@click.option(
    "--min-answered", callback=_bound, metavar="POINTS", default="-1", help="Least change of answered questions."
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Number of processes; by default one per core.")
@_all_option
@_json_option("A JSON list, an object for each profile.")
def check_command() -> None:
    """Builds recorded sessions again under a change, and fails where they cost more or know less by more than a bound.

    Each session is simulated from its first call on, with the recorded answers, under what is recorded and under the
    change. Without one, this version of the package is compared with what was recorded. A bound is passed where the
    mean over sessions is beyond it with confidence, by a paired bootstrap. Cost is the price of requests, cached input
    at the model's price for it; questions are those of `aether-context exam`, in percentage points.

    The exit code is 1 where a bound is passed, more requests are larger than their window, or a session cannot be built
    under the change; then the calls that changed most are shown. All that is not changed stays as recorded, also the
    window of a model for which a policy names none.
    """


@_command("exam.show_exam", "exam", "exam --app shop --json", "exam --session s1")
@_stored_packs
@_json_option("The same as JSON.")
def exam() -> None:
    """Asks whether calls could know what they used, where a cut or an extract had taken it out of their requests.

    A question is about a value or a quoted line that a call used, that a result or a person had said first, and that
    does not stand whole in the call's request. It is answered where it stands in the request beside a word of its line;
    found where one search with the other words of the call gives it, as `search_artifact` would, in at most 2,000
    tokens; and else lost. No model is asked, and the same packs give the same figures.
    """


@_command("exam.show_arms", "compare", "compare --app shop", "compare --store s3://bucket/packs --json")
@_stored_packs
@_all_option
@_json_option("The same as JSON.")
def compare_command() -> None:
    """Compares the arms of `ContextPackPlugin(arms={...})`: cost, cached share, overflows, failed calls,
    answered and lost questions of the exam, acceptance, each with its interval over sessions.

    The first line says how the arms differ, and --all the rest. A difference is one where chance alone would give it in
    less than 5% of cases, in two tails and adjusted for the number of comparisons, and both arms have 30 sessions. Else
    the line says about how many more sessions it takes to see one of this size.
    """


@_command("usage.show_usage", "usage", "usage --app shop --by model", "usage --session s1 --by agent --by day --json")
@_stored_packs
@click.option(
    "--by",
    type=click.Choice(["agent", "day", "model", "session", "tool"]),
    multiple=True,
    default=("agent", "day"),
    help="A row for each of these; may be given more than once, but for tool.",
)
@_json_option("The same as JSON; null is unknown.")
def usage() -> None:
    """Shows what recorded calls used: estimates against what providers reported, cached share and cost.

    Below it lists what each strategy did to the requests, with the tokens that it freed and those that had to be read
    anew, and an estimate of what the same calls would have read without packs.

    Of the calls whose provider reported usage, p50 and p95 are the median and the 95th percentile of how far estimates
    were off, and bias is how far their sum was. A cache is lost to what changed a request's beginning, such as a cut,
    the tools or the pack's own message, or to the provider, which did not serve an equal one.

    Costs are list prices of the `genai-prices` package at the time of each call. What a provider did not report, and
    what has no known price, is unknown and never 0. Days are in UTC.
    """


@_command(
    "stores.forget_files",
    "forget --app shop --user ann --yes",
    "forget --app shop --user ann --session s1",
    "forget --older-than 30 --yes",
)
@_stored_packs
@click.option("--older-than", "days", type=_Amount(min=0), metavar="DAYS", help="What is older, of all or of one user.")
@click.option("--yes", "delete", is_flag=True, help="Delete; without it, only show what would be deleted.")
@_json_option("A JSON object with what was found.")
def forget() -> None:
    """Deletes all files of a user or of one session from a store, or what is older than some days.

    These are packs, messages, evidence, summaries, calibration, artifacts in the same store, and what waits on this
    machine to be written. With a session those of the agents that ran as tools for it go, too; evidence that other
    sessions name stays. Not touched are sessions and memories in ADK's services, and files that are not ours.

    With --older-than packs go by chains, from one cut to the next: a chain that goes on stays whole. Artifacts stay.

    The exit code is 3 where a pack could not be read; then no pack of its session goes for its age.
    """


@_command("browser.serve_pages", "serve --store s3://bucket/packs --port 9000", "serve --report bug.html --session s1")
@_stored_packs
@click.option("--host", default="127.0.0.1", help="Address to listen on; others need a token.")
@click.option("--port", type=click.IntRange(1, 65_535), default=8321, help="The port.")
@click.option(
    "--token",
    envvar="AETHER_CONTEXT_TOKEN",
    show_envvar=True,
    help="The token that readers must send, at least 16 characters; best set in the environment.",
)
@click.option("--report", "file", metavar="FILE", help="Serve nothing: write one session into this HTML file, to send.")
@click.option("--mcp", is_flag=True, help="Serve tools for a coding assistant, over standard input and output.")
def serve() -> None:
    """Shows a store's packs in a browser: sessions, their calls, each pack with its request and candidates.

    It only reads the store. To listen on another address than this machine's own it needs a token, which readers send
    once as ?token=…, or as the header "Authorization: Bearer …".

    With --report it writes the calls of one session, and its newest packs, into a file that is complete in itself and
    holds no script. Needs the extra "viewer".

    With --mcp an assistant can call list, inspect, why, diff, usage and regrets. Needs the extra "mcp".
    """


@_command(
    "demonstration.run_demo", "demo", "demo --window 4000", "demo --model gemini-flash-latest --store memory://demo"
)
@click.option("--model", help="A model to call; without it a scripted one answers, and no key or network is needed.")
@_store_option
@click.option("--window", type=click.IntRange(min=256), metavar="N", default=16_000, help="The window in tokens.")
def demo() -> None:
    """Runs a small agent with the plugin attached, and shows what its packs held."""
