"""The recipe for conda-forge asks for what the package asks for."""

import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
RECIPE = yaml.safe_load((ROOT / "deploy" / "conda" / "recipe.yaml").read_text("utf-8"))
# Packages that have another name on conda-forge.
NAMES = {"msgpack": "msgpack-python"}


def listed(requirements):
    """Return the requirements of Python packages as conda writes them."""
    found = {}
    for line in requirements:
        requirement = Requirement(line)
        found[NAMES.get(requirement.name, requirement.name)] = {
            str(part) for part in requirement.specifier
        }
    return found


def of_recipe(kind):
    pairs = (line.partition(" ") for line in RECIPE["requirements"][kind])
    return {name: {*filter(None, bounds.split(","))} for name, _, bounds in pairs}


def test_requirements_are_those_of_the_package():
    project = PROJECT["project"]
    run = of_recipe("run")
    assert run.pop("python") == {">=${{ python_min }}"}
    assert project["requires-python"] == f">={RECIPE['context']['python_min']}"
    extras = project["optional-dependencies"]
    assert run == listed([*project["dependencies"], *extras["cli"]])
    assert of_recipe("run_constraints") == listed(extras["spark"])
    assert of_recipe("host").items() >= listed(PROJECT["build-system"]["requires"]).items()


def test_commands_are_those_of_the_package():
    [command] = PROJECT["project"]["scripts"].items()
    assert RECIPE["build"]["python"]["entry_points"] == [" = ".join(command)]
