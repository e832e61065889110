"""Fields by dotted names: one function for the configs of recipes and those that the report reads."""

from types import MappingProxyType

from fullstride.recipes import config_files
from fullstride.report import versus
from fullstride.run_folder.flat import flat


def test_nested_fields_get_dotted_names_in_their_order():
    nested = {"steps": 3, "optimizer": {"lr": 0.1, "more": MappingProxyType({"k": None})}, "betas": [1, 2], "none": {}}
    found = flat(nested)
    assert found == {"steps": 3, "optimizer.lr": 0.1, "optimizer.more.k": None, "betas": [1, 2]}
    assert list(found) == ["steps", "optimizer.lr", "optimizer.more.k", "betas"]


def test_recipes_and_the_report_use_the_same():
    assert config_files.flat is versus.flat is flat
