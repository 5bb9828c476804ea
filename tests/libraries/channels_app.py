"""A chat of Django Channels, with a consumer of each sort."""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from typing import Any, ClassVar

from asgiref.sync import async_to_sync
from channels.generic.websocket import AsyncJsonWebsocketConsumer, JsonWebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.urls import path

from drainmw import DrainMiddleware

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
logger = logging.getLogger("app")

settings.configure(
    ALLOWED_HOSTS=["*"],
    CHANNEL_LAYERS={"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}},
    INSTALLED_APPS=["channels"],
    LOGGING_CONFIG=None,
    ROOT_URLCONF=__name__,
    SECRET_KEY="only for this test",
)
http = get_asgi_application()
urlpatterns: list[Any] = []


class Chat(AsyncJsonWebsocketConsumer):  # type: ignore[misc]  # channels has no types
    room: str

    async def connect(self) -> None:
        self.room = self.scope["url_route"]["kwargs"]["room"]
        await self.channel_layer.group_add(self.room, self.channel_name)
        await self.accept()

    async def receive_json(self, content: dict[str, Any], **kwargs: Any) -> None:
        message = {"type": "chat.message", "text": content["text"]}
        await self.channel_layer.group_send(self.room, message)

    async def chat_message(self, event: dict[str, Any]) -> None:
        await self.send_json({"text": event["text"]})

    async def disconnect(self, code: int) -> None:
        await self.channel_layer.group_discard(self.room, self.channel_name)
        logger.info("left the chat with %s", code)


class Busy(Chat):
    """Its room is full of messages, whether its members say something or not."""

    chatter: ClassVar[set[asyncio.Task[None]]] = set()

    async def connect(self) -> None:
        await super().connect()
        if not self.chatter:
            self.chatter.add(asyncio.create_task(self.talk()))

    async def talk(self) -> None:
        for number in count():
            message = {"type": "chat.message", "text": str(number)}
            await self.channel_layer.group_send(self.room, message)
            await asyncio.sleep(0.002)


class Plain(JsonWebsocketConsumer):  # type: ignore[misc]  # channels has no types
    """The same chat without `async`: its methods run in threads."""

    room: str

    def connect(self) -> None:
        self.room = self.scope["url_route"]["kwargs"]["room"]
        async_to_sync(self.channel_layer.group_add)(self.room, self.channel_name)
        self.accept()

    def receive_json(self, content: dict[str, Any], **kwargs: Any) -> None:
        message = {"type": "chat.message", "text": content["text"]}
        async_to_sync(self.channel_layer.group_send)(self.room, message)

    def chat_message(self, event: dict[str, Any]) -> None:
        self.send_json({"text": event["text"]})

    def disconnect(self, code: int) -> None:
        async_to_sync(self.channel_layer.group_discard)(self.room, self.channel_name)
        logger.info("left the chat with %s", code)


websocket = URLRouter(
    [
        path("chat/<str:room>", Chat.as_asgi()),
        path("busy/<str:room>", Busy.as_asgi()),
        path("plain/<str:room>", Plain.as_asgi()),
    ]
)
router = {"http": http, "websocket": AllowedHostsOriginValidator(websocket)}
app = DrainMiddleware(ProtocolTypeRouter(router))
