"""Artifacts: ADK's contract over its own services and over ours on every backend, and nothing outside its folder."""

from __future__ import annotations

import asyncio
import os
import random
import threading

import pytest
from google.adk.artifacts import FileArtifactService, InMemoryArtifactService
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from aether_context import PackStore
from aether_context.adk import FsspecArtifactService
from aether_context.adk.artifacts import resolve
from aether_context.artifacts import relative_name
from aether_context.errors import ArtifactError, StoreError
from aether_context.testing import ARTIFACT_CHECKS

HERE = {"app_name": "app", "user_id": "ann", "session_id": "s1"}


def name_of(check):
    return check.__name__


@pytest.mark.parametrize("check", ARTIFACT_CHECKS, ids=name_of)
def test_adk_keeps_its_own_contract(check, tmp_path):
    asyncio.run(check(InMemoryArtifactService()))
    asyncio.run(check(FileArtifactService(tmp_path)))


@pytest.mark.parametrize("check", ARTIFACT_CHECKS, ids=name_of)
def test_ours_keeps_it_on_every_backend(check, place):
    url, options = place
    asyncio.run(check(FsspecArtifactService(url, **options)))


def test_savers_in_many_threads_and_loops_get_versions_of_their_own(place):
    url, options = place
    numbers = []

    def save(at):
        service = FsspecArtifactService(url, **options)

        async def several():
            for _ in range(3):
                numbers.append(await service.save_artifact(**HERE, filename="a", artifact={"text": f"{at}"}))

        asyncio.run(several())

    savers = [threading.Thread(target=save, args=(at,)) for at in range(4)]
    for one in savers:
        one.start()
    for one in savers:
        one.join()
    assert sorted(numbers) == list(range(12))
