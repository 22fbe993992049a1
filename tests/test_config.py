"""Settings as frozen dataclasses: from JSON, by dotted names, and no field that nobody knows."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from oal.base import config as configs
from oal.errors import InputError


@dataclass(frozen=True)
class Example:
    sizes: tuple[int, ...] = (8, 8)
    rate: float = 0.5
    count: int = 3
    flag: bool = False
    word: str = "plain"
    limit: float | None = 10.0
    aim: float | None = None

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise InputError(f"rate is {self.rate}: it must be at least 0")


@dataclass(frozen=True)
class Named:
    name: str
    count: int = 1


def test_a_dataclass_is_made_from_json_and_back() -> None:
    example = Example(sizes=(4,), rate=0.25, count=7, flag=True, word="other", limit=None, aim=-1.0)
    assert configs.build(Example, json.loads(json.dumps(asdict(example))), name="example") == example
    assert configs.build(Example, {}, name="example") == Example()


def test_only_the_named_fields_change() -> None:
    example = Example(count=9)
    changed = configs.changed(example, {"rate": 0.1}, name="example")
    assert changed == Example(count=9, rate=0.1)
    assert example == Example(count=9)


@pytest.mark.parametrize(
    "field, given, kept",
    [
        ("sizes", [1, 2], (1, 2)),
        ("rate", 1, 1.0),
        ("count", 4.0, 4),
        ("flag", True, True),
        ("limit", None, None),
        ("limit", 3, 3.0),
        ("aim", -2.0, -2.0),
        ("aim", None, None),
    ],
)
def test_numbers_and_lists_become_what_the_field_holds(field: str, given: Any, kept: Any) -> None:
    value = getattr(configs.build(Example, {field: given}, name="example"), field)
    assert value == kept
    assert type(value) is type(kept)


@pytest.mark.parametrize(
    "field, given",
    [
        ("sizes", 8),
        ("sizes", "8,8"),
        ("sizes", ["a"]),
        ("sizes", [8.5]),
        ("sizes", [True]),
        ("rate", "fast"),
        ("rate", True),
        ("rate", float("nan")),
        ("rate", float("inf")),
        ("rate", 10**400),
        ("limit", float("-inf")),
        ("count", 1.5),
        ("count", float("inf")),
        ("count", True),
        ("count", "3"),
        ("flag", 1),
        ("flag", "yes"),
        ("word", 3),
        ("word", None),
        ("rate", None),
        ("limit", "none"),
        ("aim", "auto"),
        ("aim", [1.0]),
        ("aim", True),
    ],
)
def test_values_of_another_kind_are_refused_by_name(field: str, given: Any) -> None:
    with pytest.raises(InputError, match=rf"example\.{field}"):
        configs.build(Example, {field: given}, name="example")


def test_unknown_fields_are_refused_and_the_known_ones_listed() -> None:
    with pytest.raises(InputError, match=r"example setting 'rates' is unknown: choose one of .*rate.*count"):
        configs.build(Example, {"rates": 1.0}, name="example")
    with pytest.raises(InputError, match="unknown"):
        configs.changed(Example(), {"": 1.0}, name="example")


@pytest.mark.parametrize("given", [5, [1, 2], "updates", True])
def test_settings_that_are_no_object_are_refused(given: Any) -> None:
    with pytest.raises(InputError, match=r"the example settings are .*: an object"):
        configs.build(Example, given, name="example")


def test_missing_fields_are_refused() -> None:
    with pytest.raises(InputError, match=r"named settings cannot be read .*'name'"):
        configs.build(Named, {"count": 2}, name="named")


def test_what_the_dataclass_refuses_is_refused() -> None:
    with pytest.raises(InputError, match="rate is -1"):
        configs.changed(Example(), {"rate": -1}, name="example")


@pytest.mark.parametrize(
    "text, name, value",
    [
        ("policy.kl_weight=0.1", "policy.kl_weight", 0.1),
        ("policy.hidden=[64, 64]", "policy.hidden", [64, 64]),
        ("environments=3", "environments", 3),
        ("debug_true_cost=true", "debug_true_cost", True),
        ("cost.clip=null", "cost.clip", None),
        ("bc=None", "bc", None),
        ("cost.geometry=simplex", "cost.geometry", "simplex"),
        (" cost.geometry = l2 ", "cost.geometry", "l2"),
        ("note=a=b", "note", "a=b"),
        ("policy.learning_rate=3e-4", "policy.learning_rate", 3e-4),
    ],
)
def test_settings_are_read_from_text(text: str, name: str, value: Any) -> None:
    assert configs.parse(text) == (name, value)


@pytest.mark.parametrize("text", ["", "policy.kl_weight", "=3", "  =3"])
def test_text_that_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="name=value"):
        configs.parse(text)
