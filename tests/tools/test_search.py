"""The search tool: where it looks, and how results are written for the policy."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.loopback import hang
from tests.tools.calls import called, context
from tests.tools.retrieval.passages import PASSAGES, answering, corpus, listening

from dagrpo.core.errors import UserError
from dagrpo.tools import InfrastructureFailure, ToolFailure, ToolPlace
from dagrpo.tools.retrieval.index import Index
from dagrpo.tools.search import TOOL, Config
from dagrpo_agents.search_server import application

DOCUMENTS = (
    'Doc 1 (Title: "Torva")\nTorva is a town in Norland.\n\nDoc 2 (Title: "Harrow")\nHarrow is a town in Suland.'
)


@pytest.fixture
def place(tmp_path: Path) -> ToolPlace:
    return ToolPlace(folder=tmp_path, passages=corpus(tmp_path / "passages.parquet"))


def test_the_tasks_own_passages_are_searched(place: ToolPlace) -> None:
    assert called("search", Config(topk=2), place=place, query="a town in Norland") == DOCUMENTS


def test_a_plain_result_is_the_texts_alone(place: ToolPlace) -> None:
    config = Config(topk=1, style="plain")
    assert called("search", config, place=place, query="Norland") == "Torva is a town in Norland."


@pytest.mark.parametrize("query", ["zzz", "", "?"])
def test_a_search_in_vain_says_so(place: ToolPlace, query: str) -> None:
    assert called("search", place=place, query=query) == "Nothing found."
    assert called("search", Config(style="plain"), place=place, query=query) == "Nothing found."


def test_a_query_that_is_too_long_is_told(place: ToolPlace) -> None:
    with pytest.raises(ToolFailure, match="more than 1000 characters"):
        called("search", place=place, query="a" * 1001)


def test_another_corpus_is_searched_where_it_is_named(tmp_path: Path) -> None:
    path = corpus(tmp_path / "other.parquet", PASSAGES[3:])
    config = Config(corpus=str(path), style="plain")
    assert called("search", config, query="town") == "Harrow is a town in Suland."


def test_a_task_without_passages_needs_a_place_to_search() -> None:
    with pytest.raises(UserError, match=r"set rollout\.tools\.search\.corpus or rollout\.tools\.search\.url"):
        called("search", query="town")


@pytest.mark.parametrize("values", [{"url": "http://h", "corpus": "a.parquet"}, {"url": "127.0.0.1:8000/retrieve"}])
def test_two_places_and_an_address_that_is_no_server_are_refused(values: dict[str, str]) -> None:
    with pytest.raises((ValidationError, UserError), match=r"remove one of them|search\.url is not one"):
        Config.model_validate(values)


def test_a_server_finds_what_this_process_finds(place: ToolPlace) -> None:
    async def search() -> str:
        async with (
            listening(application(Index(PASSAGES))) as url,
            TOOL.open(Config(url=url, topk=2), place) as tool,
        ):
            return await tool.call("search", {"query": "a town in Norland"}, context())

    assert asyncio.run(search()) == DOCUMENTS


def test_a_server_that_hangs_is_no_fault_of_the_policy(place: ToolPlace) -> None:
    async def search() -> Any:
        async with (
            listening(answering(hang)) as url,
            TOOL.open(Config(url=url, seconds=0.1, retries=0), place) as tool,
        ):
            return await tool.call("search", {"query": "town"}, context())

    with pytest.raises(InfrastructureFailure, match="did not answer within"):
        asyncio.run(search())


def test_only_a_search_at_a_server_may_change_from_day_to_day() -> None:
    assert TOOL.repeatable(Config())
    assert TOOL.repeatable(Config(corpus="a.parquet"))
    assert not TOOL.repeatable(Config(url="http://127.0.0.1:8000/retrieve"))
