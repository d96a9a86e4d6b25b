"""Files before and after: what changed, what did not, and what is not known.

A snapshot holds the bytes of small files, so that `restore` can put them back, unless somebody
changed them since.  Nothing here watches: a change between two looks that cancels itself out is
not seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Final

from stopkit.errors import RestoreRefused

ABSENT: Final = "absent"
"""Stands where a hash would: there is no file."""

UNREADABLE: Final = "unreadable"
"""Stands where a hash would: there is something, and it could not be read."""

KEEP_LIMIT: Final = 1_000_000
"""Bytes up to which a file's content is kept for `restore`."""


@dataclass(frozen=True, slots=True)
class FileVersion:
    """One file at one time.  `digest` is its SHA-256 in hex, `ABSENT` or `UNREADABLE`."""

    path: str
    digest: str
    size: int | None = None
    mode: int | None = None
    content: bytes | None = None

    @property
    def known(self) -> bool:
        return self.digest != UNREADABLE


@dataclass(frozen=True, slots=True)
class FileDiff:
    """Two looks at the same files: (path, digest before, digest after) each."""

    changed: tuple[tuple[str, str, str], ...]
    unchanged: tuple[tuple[str, str, str], ...]
    unknown: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    versions: Mapping[str, FileVersion]

    def compare(self) -> FileDiff:
        """What became of these files until now."""
        groups: dict[str, list[tuple[str, str, str]]] = {
            "changed": [],
            "unchanged": [],
            "unknown": [],
        }
        for path, before in self.versions.items():
            after = look(path, keep=0)
            if not (before.known and after.known):
                group = "unknown"
            else:
                group = "unchanged" if before.digest == after.digest else "changed"
            groups[group].append((path, before.digest, after.digest))
        return FileDiff(
            tuple(groups["changed"]), tuple(groups["unchanged"]), tuple(groups["unknown"])
        )


def snapshot(paths: Iterable[str | PathLike[str]]) -> Snapshot:
    """The files as they are now; a path may name none yet."""
    found = [look(os.fspath(path)) for path in paths]
    return Snapshot({version.path: version for version in found})


def look(path: str, *, keep: int = KEEP_LIMIT) -> FileVersion:
    """One file as it is now, with its content if that has no more than `keep` bytes."""
    try:
        with open(path, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                return FileVersion(path, UNREADABLE)
            if facts.st_size <= keep:
                content = file.read()
                digest = hashlib.sha256(content).hexdigest()
            else:
                content = None
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            return FileVersion(path, digest, facts.st_size, stat.S_IMODE(facts.st_mode), content)
    except FileNotFoundError:
        return FileVersion(path, ABSENT)
    except OSError:
        return FileVersion(path, UNREADABLE)


def restore(before: Snapshot, diff: FileDiff) -> tuple[str, ...]:
    """Put back the files that `diff` says were changed; returns their paths.

    All are checked first, and then replaced one by one, each at once.

    Raises:
        RestoreRefused: if one was changed again since the diff, or its old content was not kept.
            Nothing was touched then.
        OSError: if one could not be replaced; those before it were.
    """
    for path, _, after in diff.changed:
        if look(path, keep=0).digest != after:
            raise RestoreRefused(f"{path} was changed by somebody else since")
        version = before.versions[path]
        if version.digest != ABSENT and version.content is None:
            raise RestoreRefused(f"the earlier content of {path} was too large to keep")
    for path, _, _ in diff.changed:
        version = before.versions[path]
        if version.digest == ABSENT:
            os.unlink(path)
        else:
            _replace(path, version)
    return tuple(path for path, _, _ in diff.changed)


def _replace(path: str, version: FileVersion) -> None:
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".")
    try:
        with open(handle, "wb") as file:
            file.write(version.content or b"")
            if version.mode is not None:
                os.fchmod(file.fileno(), version.mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
