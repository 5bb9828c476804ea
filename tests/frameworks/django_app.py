"""Django: its ASGI application, wrapped."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path

from drainmw import DrainMiddleware
from tests.frameworks.streams import endless, still_open

did: Counter[str] = Counter()

settings.configure(
    ALLOWED_HOSTS=["*"],
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="only for this test",
)


def _seconds(request: HttpRequest) -> float:
    return float(request.GET.get("seconds", "0"))


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


def slow(request: HttpRequest) -> HttpResponse:
    time.sleep(_seconds(request))  # a plain view: Django runs it in a thread
    return HttpResponse("slow")


async def stream(request: HttpRequest) -> StreamingHttpResponse:
    async def chunks() -> AsyncIterator[str]:
        for number in range(5):
            yield f"{number} "
            await asyncio.sleep(_seconds(request) / 5)

    return StreamingHttpResponse(chunks(), content_type="text/plain")


async def events(request: HttpRequest) -> StreamingHttpResponse:
    stream = endless(_seconds(request))
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
    path("slow", slow),
    path("stream", stream),
    path("events", events),
    path("open", open_now),
    path("upload", upload),
    path("uploads", uploads),
]

wrapped = DrainMiddleware(get_asgi_application())
