"""Attempts with tools, users and pictures, which verl's agent loops have our process make; verl's stand-in runs them here."""

import sys
from pathlib import Path

import pytest
from packages.dagrpo_verl.tests import scripted_attempts, several_turns, with_pictures
from tests.trainer.foreign_runs import path_with

pytestmark = pytest.mark.nightly


def test_verl_gets_the_tokens_masks_and_rewards_of_our_own_loop(tmp_path: Path) -> None:
    run = several_turns.run_in(tmp_path)
    scripts = several_turns.SCRIPTS
    found = scripted_attempts.attempts(sys.executable, run, tmp_path / "state", scripts, path_with("verl"))
    several_turns.require_ours(found, run)


def test_verl_gets_the_placeholders_and_pictures_of_our_own_prompts(tmp_path: Path) -> None:
    run = with_pictures.run_in(tmp_path, "qwen2_5_vl")
    found = scripted_attempts.attempts(
        sys.executable, run, tmp_path / "state", with_pictures.SCRIPTS, path_with("verl")
    )
    with_pictures.require_ours(found, run)
