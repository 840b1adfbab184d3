"""The HTTP door: REST, server-sent events, WebSocket."""
