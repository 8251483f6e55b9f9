"""Connections between controllers and the runtime: in process, or over a WebSocket.

Reading order:
    session            one connection as its transport sees it; its bounds, and how it ends
    endpoint           the runtime's side: sessions come and go, the runtime takes commands
    client             the controller's side, as a protocol
    inprocess          a client in the runtime's own process
    websocket          the runtime's side of a socket, for the application's HTTP server
    websocket_client   the controller's side of a socket

One implementation serves both protocols: it knows `Hello` and `InitializationComplete`, and of the
other commands nothing.
"""
