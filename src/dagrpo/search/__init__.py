"""Search over passages: an index of our own, and Search-R1's protocol on both sides.

The protocol (arXiv:2503.09516, as verl's search tool speaks it): `POST /retrieve {"queries": [...], "topk": 3,
"return_scores": true}` is answered by `{"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}`, best first; the
contents of a passage are its title in quotes on a line of its own, and its text. Not here: dense retrieval; a server with it
speaks the same protocol.
"""

from dataclasses import dataclass

LONGEST_QUERY = 1000  # characters
MOST_RESULTS = 100  # for one query


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One text that a search may find."""

    title: str
    text: str

    @property
    def contents(self) -> str:
        """As the protocol has it."""
        return f'"{self.title}"\n{self.text}'
