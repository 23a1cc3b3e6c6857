from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ownloop.backends.model_forms import FORMS, USUAL_SERVERS, ModelForm, forms_as_text
from ownloop.backends.models import check_model

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.example)
def test_every_form_is_one_that_agents_take_and_names_an_extra_that_exists(form: ModelForm) -> None:
    example = form.example.replace("HOST", "host").replace("PORT", "8000")
    check_model(example)
    assert example.partition(":")[0] == form.scheme
    assert form.extra in EXTRAS
    assert form.example in forms_as_text()


def test_what_is_missing_is_named_without_importing_it() -> None:
    form = ModelForm("x", "x", "", "x", ("ownloop", "no_such_module"))
    assert form.missing == ("no_such_module",)


def test_servers_of_ones_own_are_looked_for_on_the_loopback_only() -> None:
    assert all(server.base_url.startswith("http://localhost:") for server in USUAL_SERVERS)
