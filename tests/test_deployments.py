"""deploy/prefect.yaml: every entrypoint is a real flow, every parameter is one of its, the pool is the command's."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.flows import load_flow_from_entrypoint

from flows import launch
from flows.pipeline import basemill
from tasks.runs import stages_between

FILE = Path(__file__).parents[1] / "deploy" / "prefect.yaml"
PROJECT = yaml.safe_load(FILE.read_text())
DEPLOYMENTS = PROJECT["deployments"]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=[deployment["name"] for deployment in DEPLOYMENTS])
def test_a_deployment_is_a_real_flow_with_its_parameters(deployment: dict[str, Any]) -> None:
    flow: Flow[..., Any] = load_flow_from_entrypoint(deployment["entrypoint"], use_placeholder_flow=False)
    assert flow.name == basemill.name
    given = deployment.get("parameters", {})
    assert set(given) <= set(flow.parameters.properties)
    assert stages_between(given.get("from_stage"), given.get("until_stage"))
    assert deployment["work_pool"]["name"] == launch.POOL


def test_the_command_registers_the_first_of_them() -> None:
    """Whoever comes last, the command or `prefect deploy`, leaves the same deployment on the server."""
    first = DEPLOYMENTS[0]
    assert (first["name"], first["entrypoint"]) == (launch.DEPLOYMENT, launch.ENTRYPOINT)
    assert first["description"] == basemill.description
    assert "parameters" not in first


def test_no_machine_is_named() -> None:
    assert PROJECT["pull"] == []
    assert not [text for text in FILE.read_text().split() if text.startswith(("/", "~"))]


def test_names_differ() -> None:
    """Two deployments of one flow and one name would overwrite each other."""
    assert len({deployment["name"] for deployment in DEPLOYMENTS}) == len(DEPLOYMENTS)


def test_the_run_form_explains_every_parameter() -> None:
    properties = basemill.parameters.properties
    assert list(properties) == ["root", "recipe", "from_stage", "until_stage", "force"]
    assert all(value.get("description") for value in properties.values())
