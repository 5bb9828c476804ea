"""Django: its ASGI application, wrapped."""

from __future__ import annotations

from collections import Counter

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path

from drainmw import DrainMiddleware
from tests.frameworks.streams import endless, five_chunks, still_open
from tests.gate import block_at

did: Counter[str] = Counter()

settings.configure(
    ALLOWED_HOSTS=["*"],
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="only for this test",
)


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


def held(request: HttpRequest) -> HttpResponse:
    block_at(int(request.GET["gate"]))  # a plain view: Django runs it in a thread
    return HttpResponse("held")


async def stream(request: HttpRequest) -> StreamingHttpResponse:
    chunks = five_chunks(int(request.GET["gate"]))
    return StreamingHttpResponse(chunks, content_type="text/plain")


async def events(request: HttpRequest) -> StreamingHttpResponse:
    stream = endless(float(request.GET["seconds"]))
    return StreamingHttpResponse(stream, content_type="text/event-stream")


async def open_now(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(await still_open()))


async def upload(request: HttpRequest) -> HttpResponse:
    did["uploads"] += len(request.body)
    return HttpResponse("taken")


async def uploads(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(did["uploads"]))


urlpatterns = [
    path("hello", hello),
    path("held", held),
    path("stream", stream),
    path("events", events),
    path("open", open_now),
    path("upload", upload),
    path("uploads", uploads),
]

wrapped = DrainMiddleware(get_asgi_application())
