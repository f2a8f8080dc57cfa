"""Plug-in mechanism for tasks, verifiers, reward components, advantages, losses, ...

A plug-in is one object. It is found by name in the package's own folder (one module each, or one for a family), by name among the
entry points of installed distributions, or by an import path such as `my_lab.losses:tilted`. Listing names imports no plug-in
unless a module may offer several; getting one imports its module alone. Independent of the plug-ins' behaviour and parameters.
"""

import importlib
import pkgutil
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, distributions
from types import ModuleType
from typing import Generic, Protocol, TypeVar, cast

from dagrpo.core.errors import Terminated, UserError, nearest_of
from dagrpo.core.user_code import require_allowed

T = TypeVar("T")


class Named(Protocol):
    """The interface of each plug-in in a module that offers several."""

    @property
    def name(self) -> str:
        """The name in params.yaml."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The module and attribute that define a plug-in."""

    module: str
    attribute: str
    member: str = ""  # its name, where the attribute is a tuple of several


class Plugins(Generic[T]):
    """The plug-ins of one kind.

    what: the kind, in a message ("loss"). package: dagrpo's own folder; a module there offers one plug-in as
    `attribute`, known by the module's name, or with `several` a tuple of plug-ins, each known by its own `name`; with
    `folders`, a package in that folder offers one, and its modules do not.
    families: modules that offer several -> their names, each an attribute in capitals.
    group: of entry points. key: where params.yaml names one. kind: the type of a plug-in. separator: precedes the
    attribute of an import path; "." where names become folders, and then `my_lab.tasks.capitals` is the attribute
    `capitals` of the module `my_lab.tasks`. renamed: names of an earlier version -> what to write, the middle of a sentence.
    packaged: names of the entry points of dagrpo's own packages -> what pip installs for one.
    """

    def __init__(
        self,
        *,
        what: str,
        package: str,
        attribute: str,
        group: str,
        key: str,
        kind: type[object] = object,
        several: bool = False,
        folders: bool = False,
        families: Mapping[str, Sequence[str]] | None = None,
        separator: str = ":",
        renamed: Mapping[str, str] | None = None,
        packaged: Mapping[str, str] | None = None,
    ) -> None:
        self.what = what
        self.package = package
        self.group = group
        self.key = key
        self.separator = separator
        self._renamed = renamed or {}
        self._packaged = packaged or {}
        self._attribute = attribute
        self._kind = kind
        self._several = several
        self._folders_only = folders
        self._families = {module: {name: name.upper() for name in own} for module, own in (families or {}).items()}
        self._places: Mapping[str, _Place] = {}
        self._looked_in: tuple[tuple[str, ...], tuple[EntryPoint, ...]] | None = None

    def own_names(self) -> list[str]:
        """List the names in the package's folder and of dagrpo's own packages that are installed, sorted."""
        packaged = self._known().keys() & self._packaged.keys() if self._packaged else set()
        return sorted(self._own().keys() | packaged)

    def names(self) -> list[str]:
        """List dagrpo's own names, then those of other entry points. Raises UserError if two plug-ins have one name."""
        own = self.own_names()
        return [*own, *sorted(self._known().keys() - set(own))]

    def get(self, name: str) -> T:
        """Return the plug-in of a name or import path. Raises UserError with the nearest name, or the reason of a failed import."""
        place = self._place(name)
        value = self._attribute_of(place, name)
        if not place.member:
            if not isinstance(value, self._kind):
                raise UserError(
                    f"`{name}` is not {_a(self.what)} but {_a(type(value).__name__)}: correct {self.key}, or make it a "
                    f"{self._kind.__name__} of {self._kind.__module__}."
                )
            return cast(T, value)
        members = cast(Iterable[Named], value)
        return cast(T, next(member for member in members if member.name == place.member))

    def module_of(self, name: str) -> str:
        """Return the dotted module of a plug-in, where the import closure of its code starts."""
        return self._place(name).module

    def label(self, name: str) -> str:
        """Return a plug-in's name in columns and metrics: its name, or the attribute of its import path."""
        return name.rpartition(self.separator)[2]

    def nearest(self, name: str) -> str | None:
        """Return the nearest known name for an unknown one; None for a known name, or without a near one."""
        known = self._known()
        return None if name in known or self._as_import_path(name) else nearest_of(name, known)

    def _place(self, name: str) -> _Place:
        known = self._known()
        if name in known:
            return known[name]
        if name in self._packaged:
            raise UserError(
                f"{self.key} is {name}, {_a(self.what)} of a package that is not installed: `pip install '{self._packaged[name]}'` "
                "installs it, in a clone `make setup`."
            )
        module, _, attribute = name.rpartition(self.separator)
        if not module or not attribute:
            raise UserError(
                f"`{name}` is not {_a(self.what)}: {self._hint(name)}; correct {self.key}, or give an import "
                f"path, `module{self.separator}attribute`."
            )
        require_allowed(module)
        return _Place(module=module, attribute=attribute)

    def _hint(self, name: str) -> str:
        if name in self._renamed:
            return self._renamed[name]
        near = self.nearest(name)
        if path := self._as_import_path(name):
            return f"an import path has `{self.separator}` before the object, as in `{path}`"
        return (
            f"the nearest known one is `{near}`" if near else f"the known ones are {', '.join(sorted(self._known()))}"
        )

    def _as_import_path(self, name: str) -> str | None:
        """Return the import path that a name was to be, if another separator stands before its object."""
        module, _, attribute = name.rpartition(":" if self.separator == "." else ".")
        return f"{module.replace(':', '.')}{self.separator}{attribute}" if module and attribute.isidentifier() else None

    def _own(self) -> dict[str, _Place]:
        modules = [each.name for each in pkgutil.iter_modules(self._folders()) if each.ispkg == self._folders_only]
        if self._several:
            return {
                member.name: _Place(module=module, attribute=self._attribute, member=member.name)
                for module in (f"{self.package}.{name}" for name in modules)
                for member in cast(Iterable[Named], getattr(importlib.import_module(module), self._attribute))
            }
        return {
            name: _Place(module=f"{self.package}.{module}", attribute=own)
            for module in modules
            for name, own in self._families.get(module, {module: self._attribute}).items()
        }

    def _folders(self) -> tuple[str, ...]:
        return tuple(importlib.import_module(self.package).__path__)

    def _known(self) -> Mapping[str, _Place]:
        """Return every plug-in with a name, cached until folders or entry points change."""
        looked_in = (self._folders(), _entry_points())
        if self._looked_in != looked_in:
            self._places, self._looked_in = self._look(), looked_in
        return self._places

    def _look(self) -> dict[str, _Place]:
        known = self._own()
        for point in entry_points(self.group):
            place = _Place(module=point.module, attribute=point.attr)
            first = known.setdefault(point.name, place)
            if first != place:
                raise UserError(
                    f"two plug-ins offer the {self.what} `{point.name}`, {first.module} and {place.module}: rename one of them, or "
                    "uninstall the package it is from."
                )
        return known

    def _attribute_of(self, place: _Place, name: str) -> object:
        module = self._imported(place.module, name)
        if not hasattr(module, place.attribute):
            raise UserError(
                f"`{name}` is not {_a(self.what)}: {place.module} has no `{place.attribute}` (its objects are "
                f"{', '.join(sorted(name for name in vars(module) if not name.startswith('_')))}); correct {self.key}."
            )
        return getattr(module, place.attribute)

    def _imported(self, module: str, name: str) -> ModuleType:
        try:
            return importlib.import_module(module)
        except Terminated:
            raise
        except UserError as error:
            raise UserError(f"`{name}`: {error}") from error
        except (Exception, SystemExit) as error:  # other people's code may raise anything
            raise UserError(
                f"`{name}` is not {_a(self.what)} that can be imported ({type(error).__name__}: {error}{_raised_at(error)}): correct "
                f"{self.key}, or install what it needs; a folder of your own has to be on PYTHONPATH."
            ) from error


def entry_points(group: str) -> list[EntryPoint]:
    """Return the entry points of a group of dagrpo's."""
    return [point for point in _entry_points() if point.group == group]


@lru_cache(maxsize=1)
def _entry_points() -> tuple[EntryPoint, ...]:
    """Return the entry points of dagrpo's groups.

    Only files that name one are parsed: importlib.metadata's own search takes 5 times as long.
    """
    return tuple(
        point
        for distribution in distributions()
        if "dagrpo." in (distribution.read_text("entry_points.txt") or "")
        for point in distribution.entry_points
        if point.group.startswith("dagrpo.")
    )


def _raised_at(error: BaseException) -> str:
    """Return where an import raised an error, such as ", my_lab/losses.py, line 3"; "" if no line of a module was run."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<frozen")]
    frames = [each for each in frames if each.filename not in (__file__, importlib.__file__)]
    return f", {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def _a(noun: str) -> str:
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
