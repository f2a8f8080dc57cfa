"""Requests for models of the hub, with what to do without it."""

from dagrpo.utils.hub import Wanted

POLICY = "model"  # the section of params.yaml that names a policy's repository
TEACHER = "algorithm.teacher"
INSTEAD = {
    POLICY: "set model.source to gguf and model.gguf to a file of this machine",
    TEACHER: "set algorithm.teacher.source to folder and algorithm.teacher.folder to a checkpoint of this machine",
}


def wanted_model(repository: str, revision: str, section: str) -> Wanted:
    """Return the request for a model that `section` of params.yaml names."""
    return Wanted(
        repository=repository,
        revision=revision,
        kind="model",
        correct=f"correct {section}.repository and {section}.revision",
        instead=INSTEAD[section],
    )
