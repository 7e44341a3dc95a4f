"""Which names of a checkpoint are those of a model, and what a user may say of it."""

import pytest

from tf_syncrep.python.checkpoint.matching import Matching
from tf_syncrep.python.checkpoint.warm_terms import Terms, arguments_of

NAMES = ("tables/user", "tables/item", "tables/shop", "slots/m/tables/item")


def match(rename=None, skip=()):
    terms = Terms(rename, skip)
    return Matching(NAMES, NAMES, terms.rename, terms.skip)


def test_one_is_taken_in_the_place_of_the_other():
    both = {"tables/item": "tables/user", "tables/user": "tables/item"}
    for rename in (both, lambda name: both.get(name, name)):
        matching = match(rename)
        assert matching.source_of("tables/user") == "tables/item"
        assert matching.source_of("slots/m/tables/item") == "slots/m/tables/user"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rename": {"tables/itme": "tables/item"}}, "'tables/itme'; there is .*item"),
        ({"rename": {"tables/item": "tables/godos"}}, "'tables/godos'; there is"),
        ({"rename": lambda name: "tables/user"}, "different names"),
        ({"rename": lambda name: None}, "must return a name"),
        ({"rename": "tables/item"}, "`rename` must be a dict"),
        ({"skip": "tables/usr"}, "'tables/usr'; there is .*tables/user"),
        ({"skip": 3}, "`skip` must be names"),
    ],
)
def test_a_wrong_name_is_an_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        match(**arguments)


@pytest.mark.parametrize("terms", [{"truncate": 1}, {"pad": None}])
def test_what_is_allowed_is_a_bool(terms):
    (name,) = terms
    with pytest.raises(ValueError, match=f"`{name}` must be a bool"):
        arguments_of({"source": "x", **terms})


@pytest.mark.parametrize("given", [{"rename": {}}, {"source": "x", "skipp": []}])
def test_arguments_have_a_source_and_known_names(given):
    with pytest.raises(ValueError, match="`warm_start` must be a source, or a dict"):
        arguments_of(given)
