"""The code of a stage is what its module imports, and the plug-ins that the parameters select; nothing else."""

import importlib
import sys
from pathlib import Path

import pytest

from dagrpo.config.places import PACKAGES, ROOT
from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import UserError
from dagrpo.pipeline import identity
from dagrpo.pipeline.identity import (
    LIBRARIES,
    LIBRARY,
    WITHOUT_EFFECT,
    code_digest,
    code_digests,
    code_of,
    digest_of_code,
)
from dagrpo.pipeline.job_files import code_files
from dagrpo.pipeline.stages import all_stages
from dagrpo.utils.environment import version_of
from dagrpo.utils.files import sha256_of, write_json


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package outside the project: losses.py imports helpers.py inside a function; other.py is imported by nobody."""
    package = tmp_path / "some_lab"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "losses.py").write_text("def loss():\n    from . import helpers\n    return helpers\n")
    (package / "helpers.py").write_text("import some_lab.deep\n")
    (package / "deep.py").write_text("VALUE = 1\n")
    (package / "other.py").write_text("VALUE = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    for remembered in (
        identity._folder_of,
        identity._file_of,
        identity._imports,
        identity._modules_of,
        identity._named_beside,
    ):
        remembered.cache_clear()
    return package


def test_imports_are_followed_inside_functions_and_into_the_packages_of_plug_ins(lab: Path) -> None:
    files = code_of("dagrpo.pipeline.stages.score", ["some_lab.losses"])
    outside = {Path(file).name for file in files if Path(file).is_absolute()}
    assert outside == {"__init__.py", "losses.py", "helpers.py", "deep.py"}
    assert "src/dagrpo/evaluation/scoring.py" in files
    assert "some_lab" not in sys.modules, "nothing is imported to find that out"


@pytest.mark.parametrize("parser", [{}, {"parser": "of another version"}])
def test_what_other_rules_have_found_in_a_file_is_looked_for_again(
    parser: dict[str, str], lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"some_lab.losses": {"digest": sha256_of(lab / "losses.py"), "imports": []}}
    write_json(tmp_path / identity.PARSED, {**parser, "modules": found} if parser else found)
    monkeypatch.setattr(identity, "PARSED", tmp_path / identity.PARSED)
    identity._parsed_before.cache_clear()
    assert {Path(file).name for file in code_of("some_lab.losses")} >= {"losses.py", "helpers.py", "deep.py"}
    monkeypatch.undo()
    identity._parsed_before.cache_clear()


CHAIN = "".join(f"elif loss == {number}:\n    pass\n" for number in range(900))
FOR_CHECKERS = "import typing\nif typing.TYPE_CHECKING:\n    import some_lab.other\nelse:\n    import some_lab.deep\n"


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        (FOR_CHECKERS, {"losses.py", "deep.py"}),
        (f"if loss == -1:\n    pass\n{CHAIN}else:\n    from . import deep\n", {"losses.py", "deep.py"}),
    ],
    ids=["for type checkers", "at the end of a long chain of branches"],
)
def test_every_import_is_followed_but_one_for_type_checkers_also_in_a_folder_without_an_init_file(
    losses: str, found: set[str], lab: Path
) -> None:
    (lab / "losses.py").write_text(losses)
    (lab / "__init__.py").unlink()
    importlib.invalidate_caches()
    files = code_of("dagrpo.pipeline.stages.score", ["some_lab.losses"])
    assert {Path(file).name for file in files if Path(file).is_absolute()} == found


def test_an_edit_changes_the_digest_and_an_edit_elsewhere_does_not(lab: Path) -> None:
    files = code_of("dagrpo.pipeline.stages.score", ["some_lab.losses"])
    first = code_digest(files)
    (lab / "other.py").write_text("VALUE = 3\n")
    assert code_digest(files) == first
    (lab / "deep.py").write_text("VALUE = 3\n")
    assert code_digest(files) != first


OWN, USERS = "src/dagrpo/core/some.py", "packages/tools_of_a_study/some.py"
BEFORE = 'def call(tool: str) -> int:\n    """Ask."""\n    return f"{tool}!"\n'


@pytest.mark.parametrize(
    ("after", "of_own", "of_users"),
    [
        (BEFORE, False, False),
        (f"# Why.\n\n{BEFORE}  # How.\n", False, False),
        (BEFORE.replace("(tool: str)", "(\n    tool: str,\n)"), False, False),
        (BEFORE.replace("Ask", "Return"), False, True),  # the description of a tool
        (BEFORE.replace('    """Ask."""\n', ""), False, True),
        (BEFORE.replace(": str", ": bytes"), False, True),  # its schema
        (BEFORE.replace("int", "float"), False, True),
        (BEFORE.replace("return", 'return "b" +'), True, True),
        (BEFORE.replace("!", "?"), True, True),
        (BEFORE.replace("(tool: str)", "(tool: str = 'a')"), True, True),
        (f"assert True\n{BEFORE}", True, True),
        (f"class Row:\n    field: int\n{BEFORE}", True, True),
        ("def (", True, True),
    ],
)
def test_what_cannot_change_a_result_is_not_part_of_the_digest(after: str, of_own: bool, of_users: bool) -> None:
    changed = [digest_of_code(file, after.encode()) != digest_of_code(file, BEFORE.encode()) for file in (OWN, USERS)]
    assert changed == [of_own, of_users]


def test_the_type_of_a_field_is_part_of_the_digest() -> None:
    digests = {digest_of_code(OWN, f"class Row:\n    field: {name}\n".encode()) for name in ("int", "str", "'str'")}
    assert len(digests) == 3


def test_a_long_chain_of_branches_has_one_digest_at_any_depth_of_calls() -> None:
    chain = "if x == 0:\n    pass\n" + "".join(f"elif x == {number}:\n    pass\n" for number in range(900))

    def deep(levels: int) -> str:
        return digest_of_code(OWN, chain.encode()) if levels == 0 else deep(levels - 1)

    assert deep(0) == deep(600) != digest_of_code(OWN, chain.replace("899", "900").encode())


def test_a_template_that_a_file_names_is_code_and_so_is_what_it_includes(lab: Path) -> None:
    (lab / "deep.py").write_text('PAGE, OTHER = "page.html.j2", "gone.js"\n')
    (lab / "page.html.j2").write_text("{% include 'style.css.j2' %}")
    (lab / "style.css.j2").write_text("body {}")
    (lab / "unused.html.j2").touch()
    files = code_of("dagrpo.pipeline.stages.score", ["some_lab.losses"])
    assert {Path(file).name for file in files if file.endswith((".j2", ".js"))} == {"page.html.j2", "style.css.j2"}
    first = code_digest(files)
    (lab / "style.css.j2").write_text("body { color: red }")
    assert code_digest(files) != first


def test_the_page_of_the_report_is_code_of_the_stage_report_and_of_no_other() -> None:
    of_report = _files_beside("dagrpo.pipeline.stages.report")
    folder = ROOT / "src/dagrpo/report"
    shipped = {path for path in folder.iterdir() if path.suffix in (".j2", ".js")}
    assert {ROOT / file for file in of_report} == {*shipped, ROOT / "src/dagrpo/core/metrics.yaml"}
    others = [stage.work.__module__ for name, stage in all_stages().items() if name != "report"]
    assert not of_report & {file for module in others for file in _files_beside(module)}


def _files_beside(module: str) -> set[str]:
    """Return the files of a stage's code that are not Python."""
    return {file for file in code_of(module) if not file.endswith(".py") and not file.startswith(LIBRARY)}


def test_code_that_is_not_python_is_named(lab: Path) -> None:
    (lab / "helpers.py").write_text("def (:\n")
    with pytest.raises(UserError, match=r"helpers\.py is not Python"):
        code_of("dagrpo.pipeline.stages.score", ["some_lab.losses"])


@pytest.mark.parametrize("name", sorted(all_stages()))
def test_every_file_of_a_stage_exists_and_none_of_them_only_shows_or_records(name: str) -> None:
    files = code_files(Params(), all_stages()[name])
    assert f"src/dagrpo/pipeline/stages/{name}.py" in files
    assert all((ROOT / file).is_file() for file in files if not file.startswith(LIBRARY))
    hidden = tuple(f"src/{module.replace('.', '/')}" for module in WITHOUT_EFFECT)
    others = [file for file in files if not file.startswith("src/dagrpo/pipeline/stages/")]
    assert [file for file in others if file.startswith(hidden)] == []


@pytest.mark.parametrize("name", ["model", "sft", "convert", "export", "difficulty", "sample"])
def test_a_stage_that_reads_or_writes_hugging_face_checkpoints_depends_on_that_format(name: str) -> None:
    files = code_files(Params(), all_stages()[name])
    assert "src/dagrpo/checkpoints/formats/huggingface.py" in files
    assert ("src/dagrpo/checkpoints/formats/dcp.py" in files) == (name in {"sft", "convert", "export"})


def test_training_depends_on_the_selected_loss_and_verifier_and_on_no_other() -> None:
    files = code_files(Params(), all_stages()["train"])
    losses = {Path(file).name for file in files if "algorithms/losses/" in file}
    assert losses == {"__init__.py", "ppo_clip.py"}
    assert not any("data_sets" in file or "report/" in file or "megatron" in file for file in files)


def test_another_task_that_is_evaluated_is_code_of_training_only_if_its_problems_are_answered_there() -> None:
    both = ["arithmetic", "arithmetic_tool"]
    tasks = {"experiment": {"train": "arithmetic", "evaluate": both, "tasks": both}}
    calculator = "src/dagrpo/tools/calculator.py"
    alone, answered = parse(tasks), parse(tasks | {"training": {"evaluate_every": 5}})
    with_it = {stage for stage in all_stages() if calculator in code_files(alone, all_stages()[stage])}
    assert with_it == {"prepare", "sample", "sample_kept"}, "policies are chosen by the tasks that are learned from"
    assert calculator in code_files(answered, all_stages()["train"])
    assert calculator not in code_files(answered, all_stages()["sft"])


def test_the_packages_of_the_project_are_code_of_the_stages_that_use_them() -> None:
    assert {folder.parent.name for folder in ROOT.glob("packages/*/src")} <= set(PACKAGES)
    users = {package: _stages_with(f"packages/{package}/src/{package}/**/*.py", Params()) for package in PACKAGES}
    assert (
        users["dagrpo_sglang_cpu"]
        == users["dagrpo_sglang_adapters"]
        == {"difficulty", "sample", "sample_kept", "train", "validate"}
    )
    assert users["dagrpo_sandbox"] == set()
    programs = parse({"experiment": {"train": "mbpp", "evaluate": ["mbpp"], "tasks": ["mbpp"]}})
    inside = "packages/dagrpo_sandbox/src/dagrpo_sandbox/inside.py"
    assert _stages_with(inside, programs) == {"choose", "prepare", "difficulty", "train", "score"}


def _stages_with(pattern: str, params: Params) -> set[str]:
    """Return the stages whose code holds every file of a pattern."""
    files = {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}
    return {name for name, stage in all_stages().items() if files and files <= set(code_files(params, stage))}


@pytest.mark.parametrize(
    ("library", "stages"),
    [
        ("math-verify", {"choose", "difficulty", "train", "score", "report"}),
        ("antlr4-python3-runtime", {"choose", "difficulty", "train", "score", "report"}),
        ("sglang", {"difficulty", "train", "sample", "sample_kept", "validate"}),
        ("peft", {"sft", "train"}),
        ("gguf", {"model", "teacher"}),
        ("renderers", set()),
        ("scipy", {"choose", "train", "score", "report"}),
        ("matplotlib", {"report"}),
        ("tokenizers", set(all_stages()) - {"score"}),
    ],
)
def test_another_version_of_a_library_runs_the_stages_again_that_import_it(
    library: str, stages: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: code_digest(code_files(Params(), stage)) for name, stage in all_stages().items()}
    monkeypatch.setattr(identity, "version_of", lambda name: "0" if name == library else version_of(name))
    after = {name: code_digest(code_files(Params(), stage)) for name, stage in all_stages().items()}
    assert {name for name in before if before[name] != after[name]} == stages


def test_every_library_in_the_table_is_installed_and_another_build_of_its_version_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"{LIBRARY}{name}" for group in LIBRARIES.values() for name in group]
    versions = code_digests(names)
    assert set(versions) == set(names)
    monkeypatch.setattr(identity, "version_of", lambda name: f"{version_of(name)}+cu130")
    assert code_digests(names) == versions


def test_a_module_that_a_process_is_started_with_is_code() -> None:
    assert "packages/dagrpo_answers/src/dagrpo_answers/worker.py" in code_of("dagrpo.pipeline.stages.score")


def test_an_edit_to_the_grammar_of_answers_trains_and_scores_again() -> None:
    grammar = "packages/dagrpo_answers/src/dagrpo_answers/comparing.py"
    assert _stages_with(grammar, Params()) == {"choose", "difficulty", "train", "score", "report"}
    chosen = "packages/dagrpo_answers/src/dagrpo_answers/verifiers/math.py"
    assert _stages_with(chosen, Params()) == set()
    assert _stages_with(chosen, parse({"reward": {"verifier": "math"}})) == {
        "choose",
        "prepare",
        "difficulty",
        "train",
        "score",
    }
