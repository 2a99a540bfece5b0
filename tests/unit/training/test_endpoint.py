"""An OpenAI-compatible endpoint as a counterpart, against a real HTTP server on loopback that speaks the protocol."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState
from training.counterparts import BatchNegotiator
from training.counterparts.endpoint import EndpointNegotiator, EndpointUnreachable

KEY, MODEL = "sk-right", "qwen-small"


class ChatServer(ThreadingHTTPServer):
    """Serves one model to who has the key; ``say`` answers, ``status`` fails all completions."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ChatHandler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.say: Callable[[dict[str, Any]], str | None] = lambda request: " Too much. [offer suv 9000]\n"
        self.status, self.lists, self.in_flight, self.most_in_flight = 200, True, 0, 0
        self.lock = threading.Lock()


class ChatHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ChatServer

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/v1/models" and self.server.lists:
            self.answer(200, {"object": "list", "data": [{"id": n, "object": "model"} for n in (MODEL, "llama-big")]})
        else:
            self.answer(404, {"error": {"message": "no such route"}})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
            self.server.requests.append(request)
            self.server.in_flight += 1
            self.server.most_in_flight = max(self.server.most_in_flight, self.server.in_flight)
        try:
            self.complete(request)
        finally:
            with self.server.lock:
                self.server.in_flight -= 1

    def complete(self, request: dict[str, Any]) -> None:
        if self.path != "/v1/chat/completions":
            self.answer(404, {"error": {"message": "no such route"}})
        elif self.headers["authorization"] != f"Bearer {KEY}":
            self.answer(401, {"error": {"message": "wrong key"}})
        elif request["model"] != MODEL:
            self.answer(404, {"error": {"message": "no such model"}})
        elif self.server.status != 200:
            self.answer(self.server.status, {"error": {"message": "out of memory"}})
        else:
            message = {"role": "assistant", "content": self.server.say(request)}
            choice = {"index": 0, "message": message, "finish_reason": "length"}
            body = {"id": "1", "object": "chat.completion", "created": 0, "model": MODEL, "choices": [choice]}
            self.answer(200, body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ChatServer() as running:
        # A short poll interval: shutdown() waits for the next one.
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()


def endpoint(server: ChatServer, role: Role = Role.COUNTERPART, **changes: Any) -> EndpointNegotiator:
    options = {"url": server.url, "model": MODEL, "api_key": KEY, "timeout": 5.0, "retries": 0, **changes}
    return EndpointNegotiator(role, **options)


def opened(name: str, first: Role, *texts: str, seed: int = 1) -> tuple[Context, NegotiationState]:
    """A negotiation after these messages, ``first`` having spoken first."""
    scenario = scenario_named(name)
    context = scenario.generate(seed).model_copy(update={"first_speaker": first})
    state = scenario.begin(context)
    for text in texts:
        state = scenario.advance(context, state, state.next_speaker, text)
    return context, state


def test_it_answers_with_the_models_words_and_is_a_batch_negotiator(server: ChatServer) -> None:
    player = endpoint(server)
    assert isinstance(player, BatchNegotiator)
    assert (player.name, player.family, player.role) == (f"endpoint:{MODEL}", "endpoint", Role.COUNTERPART)
    assert endpoint(server, name="judge").name == "judge"
    assert player.reply(*opened("telesales", Role.AGENT, "Hello."), random.Random(1)) == "Too much. [offer suv 9000]"
    player.check()


@pytest.mark.parametrize("name", ["telesales", "deal-or-no-deal"])
@pytest.mark.parametrize("role", list(Role))
def test_it_is_told_its_own_side_the_moves_and_the_dialogue_as_it_saw_it(
    server: ChatServer, name: str, role: Role
) -> None:
    context, state = opened(name, role, "Mine first.", "Theirs.", "Mine again.", "Theirs again.", seed=2)
    blind = context.model_copy(update={"views": {role: context.views[role]}})
    for each in (context, blind):
        endpoint(server, role).reply(each, state, random.Random(1))
    [messages, without_the_other_view] = [request["messages"] for request in server.requests]
    assert messages == without_the_other_view
    system, opening, *dialogue = messages
    assert system["role"] == "system"
    assert system["content"].startswith(scenario_named(name).system_prompt(role, context))
    assert scenario_named(name).system_prompt(role.other, context) not in system["content"]
    assert ("[offer VEHICLE PRICE]" if name == "telesales" else "[propose BOOKS HATS BALLS]") in system["content"]
    assert opening["role"] == "user"
    assert [(m["role"], m["content"]) for m in dialogue] == [
        ("assistant", "Mine first."),
        ("user", "Theirs."),
        ("assistant", "Mine again."),
        ("user", "Theirs again."),
    ]


def test_it_sees_of_the_other_side_what_was_shown_and_of_itself_what_it_wrote(server: ChatServer) -> None:
    scenario, (context, state) = scenario_named("telesales"), opened("telesales", Role.AGENT)
    vehicle = context.public["vehicles"][0]["id"]
    state = scenario.advance(context, state, Role.AGENT, f"Nearly free! [offer {vehicle} 1]")
    endpoint(server).reply(context, state, random.Random(1))
    _, *dialogue = server.requests[0]["messages"]
    assert [(m["role"], m["content"]) for m in dialogue] == [("user", state.turns[0].shown)]
    assert "Nearly free" not in json.dumps(server.requests)
    deal, state = opened("deal-or-no-deal", Role.AGENT, "[propose 1 0 0]", "[agree]", "[select 1 0 0]")
    endpoint(server).reply(deal, state, random.Random(1))
    books, hats, balls = deal.public["counts"]
    heard = [m["content"] for m in server.requests[1]["messages"][1:]]
    assert heard == [f"[yours {books - 1} {hats} {balls}]", "[agree]", "[selection]"]


def test_the_seed_is_the_dialogues_own(server: ChatServer) -> None:
    player, (context, state) = endpoint(server), opened("telesales", Role.AGENT, "Hello.")
    for seed in (1, 1, 2):
        player.reply(context, state, random.Random(seed))
    player.reply_many([(context, state, random.Random(seed)) for seed in (1, 2)])
    seeds = [request["seed"] for request in server.requests]
    assert seeds[0] == seeds[1] != seeds[2]
    assert set(seeds[3:]) == {seeds[0], seeds[2]}
    assert all(request["temperature"] == 1.0 for request in server.requests)


def test_many_are_asked_at_once_within_the_bound_and_answered_in_order(server: ChatServer) -> None:
    arrived = threading.Barrier(4)

    def say(request: dict[str, Any]) -> str:
        # Nobody is answered before four are in flight, and the last to come may be the first to be answered.
        arrived.wait(5)
        return f"You said {request['messages'][-1]['content']}"

    server.say = say
    requests = [(*opened("telesales", Role.AGENT, f"word {n}"), random.Random(n)) for n in range(12)]
    answers = endpoint(server, concurrency=4).reply_many(requests)
    assert answers == [f"You said word {n}" for n in range(12)]
    assert server.most_in_flight == 4
    assert endpoint(server).reply_many([]) == []


def test_one_that_fails_fails_alone(server: ChatServer) -> None:
    server.say = lambda request: None if "three" in request["messages"][-1]["content"] else "Fine."
    texts = ("one", "two", "three", "four")
    answers = endpoint(server).reply_many(
        [(*opened("telesales", Role.AGENT, text), random.Random(0)) for text in texts]
    )
    assert [answers[0], answers[1], answers[3]] == ["Fine."] * 3
    assert isinstance(answers[2], EndpointUnreachable)
    assert "without any text (length)" in str(answers[2])
    assert "max_tokens=120" in str(answers[2])


# --- What is wrong is said, with the remedy -----------------------------------------------------------------------


def test_a_wrong_key_is_told_from_a_missing_model(server: ChatServer) -> None:
    for key in ("sk-wrong", None):
        with pytest.raises(EndpointUnreachable, match=r"/v1 refused the API key \(HTTP 401\): pass the key"):
            endpoint(server, api_key=key).check()
    with pytest.raises(
        EndpointUnreachable, match=r"does not serve 'gpt-none' \(HTTP 404\): choose one of llama-big, qwen-small"
    ):
        endpoint(server, model="gpt-none").check()
    server.lists = False
    with pytest.raises(EndpointUnreachable, match="check that the URL ends where /chat/completions begins"):
        endpoint(server, url=server.url.removesuffix("/v1")).check()


def test_nobody_there_too_slow_and_broken_each_have_their_remedy(server: ChatServer) -> None:
    with ChatServer() as gone:
        url = gone.url
    with pytest.raises(EndpointUnreachable, match=rf"no connection to {url} \(.+\): start the server there"):
        endpoint(server, url=url).check()
    server.status = 500
    with pytest.raises(EndpointUnreachable, match=r"answered HTTP 500 \(.*out of memory.*\): see the server's log"):
        endpoint(server).check()
    server.status = 200

    def slowly(request: dict[str, Any]) -> str:
        time.sleep(0.5)
        return "At last."

    server.say = slowly
    with pytest.raises(EndpointUnreachable, match=r"did not answer within 0\.1 seconds: raise the timeout"):
        endpoint(server, timeout=0.1).check()


def test_bounds_that_let_nothing_through_are_refused(server: ChatServer) -> None:
    for changes in ({"concurrency": 0}, {"timeout": 0}, {"max_tokens": 0}):
        with pytest.raises(ValueError, match="must each be over 0"):
            endpoint(server, **changes)


def test_nothing_is_read_from_the_environment(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of another service must not travel to this one."""
    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID"):
        monkeypatch.setenv(f"OPENAI_{name}", "secret-of-another-service")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Team: secret-of-another-service")
    with pytest.raises(EndpointUnreachable, match="refused the API key"):
        endpoint(server, api_key=None).check()
    endpoint(server).check()
    assert len(server.headers) == 2
    assert "secret" not in json.dumps(server.headers)
    assert not {"openai-organization", "openai-project", "x-team"} & set(server.headers[1])
