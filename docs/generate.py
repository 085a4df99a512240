"""Writes the parts of the pages that come from the code, between ``<!-- generated: NAME -->`` and ``<!-- end -->``.

``python docs/generate.py`` brings every page up to date. With ``--check`` it writes nothing, names the pages that are
stale, and exits with 1 where there are any.
"""

from __future__ import annotations

import json
import re
import runpy
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
from pydantic import BaseModel, Field, TypeAdapter, create_model
from pydantic.fields import FieldInfo

from aether_context import pack, policy
from aether_context.lab import cli
from aether_context.packing import payload
from aether_context.plans import schema
from aether_context.store import Manifest

PAGES = Path(__file__).parent
SCHEMA = PAGES / "policy.schema.json"
"""The JSON schema of policies, by which editors complete and check a TOML file."""
_PART = re.compile(r"(?P<open><!-- generated: (?P<name>[\w-]+) -->\n).*?(?P<close><!-- end -->)", re.DOTALL)
_OPERANDS: Mapping[str, str] = {
    "PACK": "A call's number, `latest`, the beginning of a pack's id, or the hash at its end.",
    "OTHER": "Another one.",
    "SESSION.json": "An exported session.",
    "STORE": "The same as `--store`, behind all else; where `PACK` may stand, any word that cannot be one.",
    "TEXT": "Some words, as somebody remembers them.",
}
"""What a command's arguments are, by name; click has help for options alone."""
API = (
    "aether_context",
    "aether_context.adk",
    "aether_context.lab.exam",
    "aether_context.lab.reading",
    "aether_context.retrieval",
    "aether_context.tokens",
    "aether_context.store",
    "aether_context.lab.viewer",
)
"""The packages whose names are public."""
_WITH_A_PAGE = (policy.__name__, Manifest.__module__)


def policy_fields() -> str:
    return _reference(policy.PackPolicy)


def state_fields() -> str:
    """The keys of a session's state that the package reads, and what is in them."""
    named = "Names of the step's tools, where neither the step nor the plan names them."
    state = create_model(
        "State",
        plan=(schema.PlanShape | None, Field(None, description="The task and the current step.")),
        tools=(schema.Names | None, Field(None, description=named)),
        knowledge=(schema.KnowledgeShape, Field(schema.KnowledgeShape(), description="Notes, memories and evidence.")),
    )
    return _reference(state, brief=True)


def manifest_fields() -> str:
    """What people look at in a manifest; the JSON schema has the types, and the tables that are not shown here."""
    internal = {
        "schema_version",
        "app",
        "user",
        "session",
        "invocation",
        "agent",
        "branch",
        "call",
        "task_id",
        "step_id",
        "role",
        "model",
        "profile",
        "layer_budgets",
        "extends",
        "searched",
        "weights",
        "before",
        "outcome_before",
        "epoch_number",
        "stored",
        "last_event_id",
        "last_event_time",
        "policy",
        "embedder",
        "memory_embedder",
        "positions",
        "request_index",
        "others",
        "first_call",
        "chose",
        "rewritten",
        "cached_price",
        "can_mask",
        "can_find",
        "can_read",
        "forced",
        "planners",
        "asked",
        "growth",
        "epoch",
        "epoch_before",
        "counts",
        "summaries",
        "setting",
        "texts",
        "offered",
        "masked",
        "segments",
        "stages",
        "contents",
        "saved",
        "plan_validity",
        "whole_history_breaks",
        "output_tokens",
        "signals",
        "calibration",
        "strategy_acts",
        "anchors",
        "rows.content_hash",
    }
    # The fields that the design began with stand first.
    founding = ("pack_id", "model", "window", "layer_budgets", "artifact_uris", "truncation_events", "checksum")
    shown = ("allocation", "rows", "truncation_events", "prefix")
    described = _descriptions(Manifest)
    names = dict.fromkeys([*founding, *(name for name in described if name not in internal)])
    rows = [[f"`{name}`", _brief(described[name])] for name in names]
    for name in shown:
        (inner,) = set(_models(Manifest.model_fields[name].annotation))
        inside = {f"{name}.{field}": about for field, about in _descriptions(inner).items()}
        rows += [[f"`{path}`", _brief(about)] for path, about in inside.items() if path not in internal]
    return _table(["field", "what it is"], rows)


def profiles() -> str:
    """The ranges that each profile's shares stay in, in percent of the remainder."""
    rows = []
    for name in policy.PROFILES:
        shares = policy.PackPolicy.load(name).budget.shares
        ranges = [getattr(shares, layer) for layer in pack.FLEXIBLE_LAYERS]
        rows.append([f"`{name}`", *(f"{100 * one.low:g}–{100 * one.high:g}%" for one in ranges)])
    return _table(["profile", *pack.FLEXIBLE_LAYERS], rows)


def headers() -> str:
    return "\n".join(f"{at}. `{header}`" for at, header in enumerate((payload.FIRST_LINE, *payload.HEADERS), start=1))


def closed_sets() -> str:
    """The values that fields with a closed set can take."""
    sets = {
        "layer": pack.Layer,
        "how counted": pack.Accuracy,
        "form of a candidate": pack.Form,
        "reason": pack.Reason,
        "stage of an event": pack.Stage,
        "why an epoch began": pack.EpochReason,
        "what broke the prefix": pack.PrefixBreak,
        "validity": pack.Validity,
    }
    return _table(["set", "values"], [[name, _listed(get_args(values))] for name, values in sets.items()])


def commands() -> str:
    """What the command line says of itself: the options that several commands have, then a section for each command."""
    head, *sections = _command("aether-context", cli.main)
    return "\n\n".join([head, "Several commands take:", _list(_shared(cli.main)), *sections])


def api() -> str:
    """A section for each package with public names, and a directive of mkdocstrings for each name.

    Settings and the manifest have pages for their fields, so that of their classes only the methods are shown.
    """
    sections = []
    shown: set[int] = set()
    for package in API:
        module = import_module(package)
        pieces = [f"## `{package}`", *(_line(text) for text in (module.__doc__ or "").strip().split("\n\n"))]
        for name in module.__all__:
            value = getattr(module, name)
            if id(value) not in shown:
                pieces.append(_directive(package, name, value))
            shown.add(id(value))
        sections.append("\n\n".join(pieces))
    return "\n\n".join(sections)


def example() -> str:
    """The packs of the design document's example, and its lines beside theirs."""
    text: str = runpy.run_path(str(PAGES / "example.py"))["page"]()
    return text


def links() -> str:
    """The project's addresses, which `pyproject.toml` alone names."""
    project = tomllib.loads((PAGES.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return "\n".join(f"- [{name}]({url})" for name, url in project["urls"].items())


PARTS: Mapping[str, Callable[[], str]] = {
    "policy-fields": policy_fields,
    "profiles": profiles,
    "state-fields": state_fields,
    "manifest-fields": manifest_fields,
    "closed-sets": closed_sets,
    "headers": headers,
    "commands": commands,
    "api": api,
    "example": example,
    "links": links,
}


def rendered(path: Path) -> str:
    """A page's text with its generated parts made anew, or the whole text of the schema.

    Raises:
        KeyError: the page names a part that does not exist.
    """
    if path == SCHEMA:
        return json.dumps(policy.PackPolicy.model_json_schema(), indent=1, ensure_ascii=False) + "\n"
    return _PART.sub(lambda found: f"{found['open']}{PARTS[found['name']]()}\n{found['close']}", _text(path))


def stale() -> list[Path]:
    """The pages whose generated parts differ from what the code says now."""
    return [path for path in (*sorted(PAGES.glob("*.md")), SCHEMA) if rendered(path) != _text(path)]


def main(arguments: Sequence[str]) -> int:
    outdated = stale()
    if "--check" in arguments:
        for path in outdated:
            print(f"{path.name} is stale: run python docs/generate.py")
        return int(bool(outdated))
    for path in outdated:
        path.write_text(rendered(path), encoding="utf-8")
        print(f"{path.name} is written")
    return 0


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _directive(package: str, name: str, value: object) -> str:
    if getattr(value, "__module__", "") not in _WITH_A_PAGE or not isinstance(value, type):
        return f"::: {package}.{name}"
    methods = [name for name, member in vars(value).items() if name[0] != "_" and _is_documented_method(member)]
    return f"::: {package}.{name}\n    options:\n      members: [{', '.join(methods)}]"


def _is_documented_method(member: object) -> bool:
    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    return callable(function) and bool(function.__doc__) and "pydantic" not in getattr(function, "__module__", "")


def _reference(model: type, *, brief: bool = False) -> str:
    """A table of a model's values, those of the models inside it under the path that leads there first."""
    rows = list(_rows(model, "", set(), brief=brief))
    if brief:
        rows = [[f"{name} ({values})" if values else name, about] for name, values, about in rows]
        return _table(["field", "what it is"], rows)
    return _table(["field", "default", "what it is"], rows)


def _rows(model: type, path: str, known: set[type], *, brief: bool) -> Iterator[list[str]]:
    """Fields before the models inside them; a model that several fields hold is told once."""
    known.add(model)
    for name, field in _fields_of(model).items():
        here = f"{path}{name}"
        about = _descriptions(model)[name]
        inner = [one for one in _models(field.annotation) if one is not policy.Range]
        if not inner or about:
            yield [f"`{here}`", _default(field) + _others(field), _brief(about) if brief else about]
        for one in inner:
            if one not in known and one is not policy.Limit:
                yield from _rows(one, f"{here}{'[]' if _many(field.annotation) else ''}.", known, brief=brief)


def _descriptions(model: type) -> dict[str, str]:
    """What each field of a model is; a table without words of its own has none."""
    described = TypeAdapter(model).json_schema()["properties"]
    return {name: _line(described[name].get("description", "")) for name in _fields_of(model)}


def _brief(about: str) -> str:
    """The first sentence."""
    return re.split(r"(?<=[^.]\.) |; (?!null)", about)[0].rstrip(".") + "." if about else ""


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation))


def _fields_of(model: type) -> Mapping[str, FieldInfo]:
    """The fields of a model, or of a dataclass."""
    if issubclass(model, BaseModel):
        return model.model_fields
    hints = get_type_hints(model)
    return {name: FieldInfo(annotation=hints[name]) for name in TypeAdapter(model).json_schema()["properties"]}


def _line(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _listed(values: Sequence[object]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, policy.Range):
        return f"{value.low:g} to {value.high:g}"
    if isinstance(value, tuple):
        return _listed(value)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if isinstance(value, (int, float)) or (isinstance(value, str) and value) else ""


def _others(field: FieldInfo) -> str:
    """The other values of a field with a closed set, in brackets."""
    kinds = (field.annotation, *get_args(field.annotation))
    values = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
    default = None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
    rest = [value for value in values if value != default]
    return f" ({_listed(rest)})" if rest and default is not None else _listed(rest)


def _models(annotation: Any) -> Iterator[type]:
    """The models named in an annotation."""
    if _is_model(annotation):
        yield annotation
    elif get_origin(annotation) is not Literal:
        for one in get_args(annotation):
            yield from _models(one)


def _many(annotation: Any) -> bool:
    """Whether an annotation is a list, whatever stands around it."""
    if get_origin(annotation) is Annotated:
        return _many(get_args(annotation)[0])
    return get_origin(annotation) is tuple


def _command(path: str, command: click.Command) -> Iterator[str]:
    """A command's section, then those of the commands in it."""
    subcommands = command.commands if isinstance(command, click.Group) else {}
    name = path.partition(" ")[2]
    if name:
        yield f"## `{name}`"
    first, *others = (_line(paragraph) for paragraph in (command.help or "").split("\n\n"))
    yield from (first, *(one for one in others if "xit code" in one))
    shared = [row[0] for row in _shared(cli.main)]
    rows = [row for one in command.params for row in _parameter(one) if row[0] not in shared or row[1] == "required"]
    if name and rows:
        yield _list(rows)
    for inner in sorted(subcommands):
        yield from _command(f"{path} {inner}", subcommands[inner])


def _shared(group: click.Group) -> list[list[str]]:
    """The rows that three commands or more have in common."""
    rows = [row for one in group.commands.values() for parameter in one.params for row in _parameter(parameter)]
    often = [row for row in rows if row[0].startswith("`-") and rows.count(row) > 2]
    shared = [row for at, row in enumerate(often) if often.index(row) == at]
    operands = [[f"`{name}`", "", _OPERANDS[name]] for name in ("PACK", "STORE")]
    return [*shared, ["`--json`", "", "The same for programs, as JSON; null is unknown."], *operands]


def _parameter(one: click.Parameter) -> Iterator[list[str]]:
    """The row of an option, or of an argument that is one of a few words."""
    words = f"One of {_listed(one.type.choices)}." if isinstance(one.type, click.Choice) else ""
    default = "required" if one.required else _told(one)
    if isinstance(one, click.Option) and not one.hidden:
        value = "" if one.is_flag else f" {one.metavar or one.type.name.removesuffix(' range').upper()}"
        sets = f"Also `{one.envvar}`." if one.envvar else ""
        names = f"{', '.join(one.opts)}{' / ' if one.secondary_opts else ''}{', '.join(one.secondary_opts)}"
        yield [f"`{names}{value}`", default, _line(f"{one.help or ''} {words} {sets}")]
    elif isinstance(one, click.Argument):
        name = one.human_readable_name.strip("[].")
        yield [f"`{name}`", default, words or _OPERANDS[name]]


def _told(one: click.Parameter) -> str:
    """An option's default; empty where it has none, and for a flag that is off."""
    value = one.default
    if isinstance(value, bool):
        return f"`{(one.opts if value else one.secondary_opts)[0]}`" if value or one.secondary_opts else ""
    if isinstance(value, (tuple, list)):
        return _listed(value)
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`" if isinstance(value, (str, int)) and value else ""


def _list(rows: Sequence[Sequence[str]]) -> str:
    """What a command takes, each with its default in brackets."""
    return "\n".join(f"- {name}{f' ({default})' if default else ''}: {about}" for name, default, about in rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
