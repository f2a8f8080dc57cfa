"""The search tool: where it looks, and how results are written for the policy."""

import asyncio
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.tools.calls import called, context
from tests.tools.retrieval.passages import PASSAGES, corpus, listening

from dagrpo.core.errors import UserError
from dagrpo.tools import ToolFailure, ToolPlace
from dagrpo.tools.retrieval.index import Index
from dagrpo.tools.search import TOOL, Config
from dagrpo_agents.search_server import application

DOCUMENTS = (
    'Doc 1 (Title: "Torva")\nTorva is a town in Norland.\n\nDoc 2 (Title: "Harrow")\nHarrow is a town in Suland.'
)


@pytest.fixture
def place(tmp_path: Path) -> ToolPlace:
    return ToolPlace(folder=tmp_path, passages=corpus(tmp_path / "passages.parquet"))


def test_the_tasks_own_passages_or_those_of_a_named_corpus_are_searched(place: ToolPlace, tmp_path: Path) -> None:
    assert called("search", Config(topk=2), place=place, query="a town in Norland") == DOCUMENTS
    plain = Config(topk=1, style="plain")
    assert called("search", plain, place=place, query="Norland") == "Torva is a town in Norland."
    other = Config(corpus=str(corpus(tmp_path / "other.parquet", PASSAGES[3:])), style="plain")
    assert called("search", other, query="town") == "Harrow is a town in Suland."
    with pytest.raises(UserError, match=r"set rollout\.tools\.search\.corpus or rollout\.tools\.search\.url"):
        called("search", query="town")


@pytest.mark.parametrize("query", ["zzz", "", "?"])
def test_a_search_in_vain_says_so(place: ToolPlace, query: str) -> None:
    assert called("search", place=place, query=query) == "Nothing found."
    assert called("search", Config(style="plain"), place=place, query=query) == "Nothing found."
    with pytest.raises(ToolFailure, match="more than 1000 characters"):
        called("search", place=place, query="a" * 1001)


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


def test_only_a_search_at_a_server_may_change_from_day_to_day() -> None:
    assert TOOL.repeatable(Config())
    assert TOOL.repeatable(Config(corpus="a.parquet"))
    assert not TOOL.repeatable(Config(url="http://127.0.0.1:8000/retrieve"))
