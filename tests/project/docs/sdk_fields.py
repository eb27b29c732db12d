"""The fields of OpenAI's SDK, and what the models of this server's bodies do not know of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

from responses_app.protocol.fields import ClientModel, inner_models, known_names


def sdk_types(path: str, package: str = "openai") -> list[Any]:
    """Return the typed dictionaries in a type of an SDK's `types`."""
    module, _, name = path.rpartition(".")
    return list(_dicts_in(getattr(import_module(f"{package}.types.{module}"), name)))


def by_kind(types: Iterable[Any], field: str = "type") -> Mapping[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for each in types:
        for kind in _literals(get_type_hints(each).get(field)):
            found.setdefault(kind, []).append(each)
    return found


def differences(model: type[ClientModel], types: Sequence[Any], at: str = "", seen: Sequence[object] = ()) -> list[str]:
    """Return what a model does not know of types, what it knows and they do not have, and what is not its own."""
    if model.open:
        return []
    fields: dict[str, list[Any]] = {}
    for each in types:
        for name, hint in get_type_hints(each).items():
            fields.setdefault(name, []).extend(_dicts_in(hint))
    known, own = known_names(model), set(model.own)
    found = [f"{at}{name} is new" for name in sorted(fields.keys() - known)]
    found += [f"{at}{name} is not OpenAI's" for name in sorted(known - fields.keys() - own)]
    found += [f"{at}{name} is OpenAI's now" for name in sorted(own & fields.keys())]
    for name, models in inner_models(model).items():
        for inner in dict.fromkeys(models.values()):
            kinds = [kind for kind, each in models.items() if each is inner]
            if kinds == [""] and "type" in inner.model_fields:
                kinds = _literals(inner.model_fields["type"].annotation) or kinds
            inside = [each for each in fields.get(name, []) if kinds == [""] or _is_one_of(each, kinds)]
            if inside and (inner, name) not in seen:
                found += differences(inner, inside, f"{at}{name}.", (*seen, (inner, name)))
    return found


def inner_types(types: Iterable[Any]) -> list[Any]:
    """Return the typed dictionaries in the fields of others."""
    return [inner for each in types for hint in get_type_hints(each).values() for inner in _dicts_in(hint)]


def _is_one_of(type: Any, kinds: Sequence[str]) -> bool:
    return bool(set(kinds) & set(by_kind([type])))


def _dicts_in(hint: Any) -> Iterator[Any]:
    if is_typeddict(hint):
        yield hint
        return
    for each in get_args(hint):
        yield from _dicts_in(each)


def _literals(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [str(each) for each in get_args(hint)]
    return [literal for each in get_args(hint) for literal in _literals(each)]
