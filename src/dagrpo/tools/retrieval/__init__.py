"""Search over passages: an index, and Search-R1's protocol.

The protocol (arXiv:2503.09516, as verl's search tool speaks it): `POST /retrieve {"queries": [...], "topk": 3,
"return_scores": true}` is answered by `{"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}`, best first; the
contents of a passage are a line with its title in quotes, and its text. A server with dense retrieval speaks the same
protocol.
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
        """Return the contents as the protocol has them."""
        return f'"{self.title}"\n{self.text}'
