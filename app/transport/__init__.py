"""The transport connects controllers and the runtime: in process, or over a WebSocket.

Owns connections: their queues and bounds, their stages, and the reasons for which they end. One
implementation serves both protocols: it knows `Hello` and `InitializationComplete`, and of the
other commands nothing.

May use: `protocol`, `datasource.clock`, `datasource.errors`. Start at `session`.

Never: lets the runtime wait for a controller, or passes anything of an old connection to a new one.

    session            one connection as its transport sees it; its bounds, and its end
    endpoint           the runtime's side: sessions come and go, the runtime takes commands
    client             the controller's side, as a protocol
    in_process         a client in the runtime's own process
    token_header       the token of those who connect, in a header
    websocket_server   the runtime's side of a socket, for the application's HTTP server
    websocket_client   the controller's side of a socket
"""
