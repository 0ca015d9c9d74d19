"""What a method may be told: read off its signature, and checked before it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def passes_on(to: Callable[..., Any], *but: str) -> Callable[[F], F]:
    """Say in a function's signature what its ``**call`` takes: what ``to`` does, ``but`` some."""

    def mark(function: F) -> F:
        own = signature(function).parameters
        kept = [p for p in own.values() if p.kind is not Parameter.VAR_KEYWORD]
        more = [
            p.replace(kind=Parameter.KEYWORD_ONLY)
            for p in list(signature(to).parameters.values())[1:]
            if p.name not in (*own, *but)
        ]
        whole = signature(function).replace(parameters=[*kept, *more])
        function.__signature__ = whole  # type: ignore[attr-defined]
        return function

    return mark


def check_options(name: str, call: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse an option that the method does not take, and say which it takes."""
    taken = signature(call).parameters.values()
    if any(p.kind is Parameter.VAR_KEYWORD for p in taken):
        return
    words = [p.name for p in taken if p.kind is not Parameter.POSITIONAL_ONLY][1:]
    strange = [option for option in options if option not in words]
    if strange:
        takes = ", ".join(words) or "no options: let it accept **options (seed, risk, ...)"
        raise TypeError(f"{name} takes no {strange[0]}=. It takes {takes}.")
