"""A journal together with its run in MLflow: what every part of a record needs to know of both."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.tracking import MlflowClient

from dagrpo.errors import UserError
from dagrpo.tracking.events import Event
from dagrpo.tracking.parents import PARENT, seed_tag
from dagrpo.tracking.variations import experiment_name
from dagrpo.visible import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A run, and the journal that it is made from. Holds nothing of MLflow: each question is asked anew."""

    client: MlflowClient
    folder: Path
    start: Event
    run_id: str

    @property
    def record(self) -> Mapping[str, Any]:
        """What the stage has said of itself."""
        record: Mapping[str, Any] = self.start["record"]
        return record

    @property
    def stage(self) -> str:
        return str(self.record["stage"])

    @property
    def seed(self) -> str:
        """`0`, `1`, ..., or `shared`."""
        return seed_tag(self.record)

    @property
    def experiment(self) -> str:
        """The name of its experiment."""
        return experiment_name(self.record)

    @property
    def variation(self) -> str:
        """What it is a variation by; nothing for the experiment's own."""
        return str(self.start.get("variation", ""))

    @property
    def read(self) -> Mapping[str, str]:
        """{path: sha256} of its inputs, and of what lies behind them."""
        return {**self.record["inputs"], **self.start.get("behind", {})}

    @property
    def tags(self) -> Mapping[str, str]:
        tags: Mapping[str, str] = self.client.get_run(self.run_id).data.tags
        return tags

    @property
    def parent(self) -> str:
        """The id of the run that stands for its seed."""
        return self.tags[PARENT]

    @property
    def experiment_id(self) -> str:
        return str(self.client.get_run(self.run_id).info.experiment_id)

    @contextmanager
    def file(self, event: Event) -> Iterator[Path]:
        """The file that an event refers to. Whatever it cannot be used for is a UserError: only this event is left out."""
        path = self.folder / event["file"]
        try:
            if not (path.is_file() and path.resolve().is_relative_to(self.folder.resolve())):
                raise UserError("it is no file of the journal")
            yield path
        except Exception as error:  # the border to a file that may be damaged
            raise UserError(f"{path}: {type(error).__name__}: {one_line(str(error), 200)}") from error
