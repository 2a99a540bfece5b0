"""The page at ``/`` where a person negotiates with the agent, and the endpoints that it needs beyond the usual ones.

The page is a handful of files shipped with the package: no build step, nothing from other hosts. It asks for a
tenant's API key and keeps it in the tab; it serves without one, for it holds nothing. Left out on purpose: logins,
and a setting that would let the page in without a key.
"""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from serving import practice
from serving.errors import ApiError, declared_errors
from serving.practice import PracticeDrawn, PracticeOutcome, ScenariosShown
from serving.routes import IdempotencyKey, ServiceOf, Tenant

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Asked for anew each time: an old script must not meet a new service.
    "Cache-Control": "no-cache",
}
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

scenarios = APIRouter(prefix="/v1", tags=["practice"], responses=declared_errors(401, 403, 422, 429, 503))
page = APIRouter(include_in_schema=False)


def _packaged() -> dict[str, tuple[bytes, str]]:
    """Name to content and media type. Read once: a request then names a file of this list, never a path."""
    found = {}
    for file in (files("serving") / "page").iterdir():
        kind = _MEDIA_TYPES.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None:
            found[file.name] = (file.read_bytes(), kind)
    return found


_FILES = _packaged()


@scenarios.get("/scenarios")
async def show_scenarios(tenant: Tenant) -> ScenariosShown:
    """The scenarios that a person can practise, and what each is about."""
    return practice.scenarios_shown()


@scenarios.post(
    "/scenarios/{name}/draw", status_code=201, response_model=PracticeDrawn, responses=declared_errors(404, 409, 413)
)
async def draw_scenario(
    name: str, tenant: Tenant, service: ServiceOf, idempotency_key: IdempotencyKey = None
) -> JSONResponse:
    """Draw a scenario and open a conversation on it; answers with the customer's card, not the agent's side."""
    drawn = await practice.draw(service.conversations, tenant, name, idempotency_key)
    return JSONResponse(drawn.model_dump(mode="json"), 201)


@scenarios.post("/conversations/{conversation_id}/score", responses=declared_errors(404, 409))
async def score_practice(conversation_id: str, tenant: Tenant, service: ServiceOf) -> PracticeOutcome:
    """What a closed conversation on a drawn scenario was worth to the customer. Puts its outcome on record, once."""
    return await practice.outcome(service.conversations, tenant, conversation_id)


@page.get("/")
async def index() -> Response:
    """The page."""
    return _file("index.html")


@page.get("/page/{name}")
async def page_file(name: str) -> Response:
    """One of the page's files."""
    return _file(name)


def _file(name: str) -> Response:
    if name not in _FILES:
        raise ApiError(404, "not_found", f"the page has no file {name!r}")
    content, media_type = _FILES[name]
    return Response(content, media_type=media_type, headers=_HEADERS)
