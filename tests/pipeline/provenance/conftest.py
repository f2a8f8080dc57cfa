"""A tracked project in a temporary folder, as the tests of tracking have it."""

from tests.tracking.conftest import empty_database, fresh, project, start_stage

__all__ = ["empty_database", "fresh", "project", "start_stage"]
