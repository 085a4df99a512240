"""`aether-context preview`: what the next model call of a session would be sent."""

from __future__ import annotations

import os
from typing import Any

import click

from aether_context.cli.rendering import print_pack, print_request
from aether_context.cli.terminal import print_json
from aether_context.policy import PackPolicy
from aether_context.reading import view_of
from aether_context.store.recording import request_json


def show(
    *, path: str, policy: str | None, window: int | None, request: bool, everything: bool, as_json: bool, **call: Any
) -> None:
    """Prints the next pack, or its request.

    Args:
        call: arguments of `preview`: the message, and the agent's name, model and instruction.
    """
    from aether_context.adk.preview import preview, read_session

    session = read_session(path)
    overrides = {"max_input_tokens": window} if window is not None else {}
    loaded_policy = PackPolicy.load(policy or os.environ.get("AETHER_CONTEXT_POLICY") or None, **overrides)
    pack, manifest = preview(session, policy=loaded_policy, **call)
    if as_json and request:
        click.echo(request_json(pack).encode())
    elif as_json:
        print_json(manifest.model_dump(mode="json"))
    elif request:
        print_request(view_of(pack, manifest), everything=everything)
    else:
        print_pack(view_of(pack, manifest), everything=everything)
