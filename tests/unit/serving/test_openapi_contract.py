"""The OpenAPI document keeps its word: Schemathesis calls every operation with data that fits it and data that does
not.

No answer is a server error, each has a declared status, content type and schema, and nothing that needs a key is
answered without one. Left out: whether data that fits the schema is always taken. It is not, on purpose: a context
has to fit its scenario, a conversation has to be open, and the schema cannot say so.
"""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from negotiation.catalogue import NAMES

pytestmark = pytest.mark.service

EXAMPLES = 40


@pytest.fixture(scope="module")
def document(idle_shop) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", idle_shop.app)


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_answer_is_a_declared_one(document, idle_shop, mode) -> None:
    called, succeeded = set(), set()
    for result in document.get_all_operations():
        operation = result.ok()
        called.add(operation.label)
        if mode.is_negative and not (operation.body or list(operation.iter_parameters())):
            continue  # nothing in it can be wrong

        @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
        def keeps_its_word(case: Any, data: st.DataObject) -> None:
            who = "root" if case.path.startswith("/admin") else "acme"
            who = "acme's boss" if case.path.endswith("/approval") else who
            headers = idle_shop.headers(who)
            if mode.is_positive:
                make_it_real(case, data, document, idle_shop)
            answer = case.call_and_validate(
                headers=headers, excluded_checks=[schemathesis.checks.positive_data_acceptance]
            )
            if answer.status_code < 300:
                succeeded.add(case.operation.label)

        keeps_its_word()
    assert len(called) == sum(len(methods) for methods in idle_shop.app.openapi()["paths"].values())
    if mode.is_positive:
        assert succeeded == called, "an operation that is only ever refused is not tested"


def make_it_real(case: Any, data: st.DataObject, document: Any, shop: Any) -> None:
    """Now and then an id, a context and messages that exist, so that more than refusals is seen."""
    if not data.draw(st.booleans()):
        return
    if "conversation_id" in (case.path_parameters or {}):
        body = shop.opening(data.draw(st.integers(0, 50)))
        if case.path.endswith("/approval"):
            vehicle = body["context"]["public"]["vehicles"][0]
            move = f"[offer {vehicle['id']} {vehicle['list_price'] // 100}]"
            shop.engine.say = lambda request: move
        opening = document["/v1/conversations"]["POST"].Case(body=body)
        case.path_parameters["conversation_id"] = opening.call(headers=shop.headers("acme")).json()["id"]
        shop.engine.say = lambda request: "Good day."
        if case.path.endswith("/score"):
            drawing = document["/v1/scenarios/{name}/draw"]["POST"].Case(path_parameters={"name": "telesales"})
            drawn = drawing.call(headers=shop.headers("acme")).json()
            case.path_parameters["conversation_id"] = drawn["conversation"]["id"]
        if case.path.endswith(("/outcome", "/score")):
            said = document["/v1/conversations/{conversation_id}/messages"]["POST"]
            said.Case(path_parameters=case.path_parameters, body={"text": "[quit]"}).call(
                headers=shop.headers("acme")
            )
    elif "name" in (case.path_parameters or {}):
        case.path_parameters["name"] = data.draw(st.sampled_from(NAMES))
    elif "model" in (case.path_parameters or {}):
        case.path_parameters["model"] = "sparring-agent"
    elif case.path == "/v1/conversations":
        case.body = {**shop.opening(data.draw(st.integers(0, 50))), "source": "simulated"}
    elif case.path == "/v1/chat/completions":
        body = {"model": "sparring-agent", "messages": [{"role": "user", "content": "Hello"}]}
        chosen = data.draw(st.sets(st.sampled_from(["seed", "temperature", "stream", "stream_options", "logprobs"])))
        case.body = {**{key: value for key, value in case.body.items() if key in chosen}, **body}
