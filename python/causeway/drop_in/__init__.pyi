from types import ModuleType, TracebackType
from typing import TypeVar

__all__ = ["VERSION", "Installed", "install"]

VERSION: str
MODULES: dict[str, str]

_Self = TypeVar("_Self")

class Removable:
    def __enter__(self: _Self) -> _Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class Installed(Removable):
    def __init__(self, modules: dict[str, ModuleType]) -> None: ...
    def remove(self) -> None: ...

def install() -> Installed: ...
