"""From an import string to the application that it names."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

import ruststream_kinesis
from ruststream_kinesis.app import RustStream
from ruststream_kinesis.errors import ConfigurationError

__all__ = ["NoTarget", "load_app"]


class NoTarget(ConfigurationError):
    """The text is no import string: the command line itself is wrong."""


def load_app(target: str) -> RustStream:
    """Imports `MODULE:APP`; the current directory is looked in first.

    Raises:
        NoTarget: The text is no import string.
        ConfigurationError: The module does not import, or what it names is no `RustStream`. The
            original error is its cause.
    """
    module_name, _, path = target.partition(":")
    if not all(name.isidentifier() for name in (*module_name.split("."), *path.split("."))):
        raise NoTarget(
            f"{target!r} names no application: write MODULE:APP, for example examples.orders:app"
        )
    if (
        module_name.endswith(".py")
        and Path(*module_name[:-3].split(".")).with_suffix(".py").is_file()
    ):
        module_name = module_name[:-3]
        raise NoTarget(f"{target!r} names a file: write the module, {module_name}:{path}")
    module = _import(module_name)
    found: object = module
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise ConfigurationError(
                f"module {module_name} has no {path!r}{_instead(module)}"
            ) from error
    if not isinstance(found, RustStream):
        kind = f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__
        raise ConfigurationError(
            f"{target} is {kind}, not a RustStream application{_instead(module)}"
        )
    return found


_PACKAGE = str(Path(ruststream_kinesis.__file__).parent)


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        # An installed script starts with its own folder there instead.
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            # The module is there; something that it imports is not.
            raise _broken(name, error) from error
        raise ConfigurationError(
            f"there is no module {missing!r}, neither in {here} nor on the Python path"
        ) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ConfigurationError:
    place = ""
    # A SyntaxError says itself where it is; its traceback ends in the import machinery.
    if error.__traceback__ is not None and not isinstance(error, SyntaxError):
        frames = traceback.extract_tb(error.__traceback__)
        # Where the user's code is: what this package refuses, it refuses deep in itself, or in code
        # that a dataclass generates ("<string>").
        theirs = [frame for frame in frames if not frame.filename.startswith((_PACKAGE, "<"))]
        last = (theirs or frames)[-1]
        place = f" ({last.filename}, line {last.lineno})"
    return ConfigurationError(f"importing {name} failed: {type(error).__name__}: {error}{place}")


def _instead(module: ModuleType) -> str:
    """What the module has to offer, where it does."""
    apps = [name for name, value in vars(module).items() if isinstance(value, RustStream)]
    return f"; did you mean {module.__name__}:{apps[0]}?" if apps else ""
