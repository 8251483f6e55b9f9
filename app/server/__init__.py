"""The server offers an application over HTTP: relations as JSON, metrics for Prometheus, SQL.

Owns the routes, their protection, and the file by which other commands find a running application;
and the client that those commands use.

May use: `coordinator`, `controller`, `introspection`, `transport`, `protocol`, `settings`. Start at
`api`, then `application_server`.

Never: changes anything by a GET, or answers a request that `access` has refused.

    access               protects the routes: token, Host, Origin, sizes
    api                  the routes of any set of services
    shared_answer        computes once what many ask for at the same time
    errors_route         the route of bad rows
    any_text             a path whose rest is any text, such as an object's name
    subscription_socket  relations followed over a WebSocket
    subscription_messages    what its two ends say to each other
    subscription_cursor  what each client follows, and what it lacks of that
    action_log           records what a person has asked for
    open_clients         those who follow relations at the moment
    page_routes          the page: its document and files, which are in the folder `page`
    session_codes        one-time codes by which the page gets the token
    application_server   the routes of an application, and its announcement
    http_server          a server in a thread of its own
    listening            the application's address, reserved before the location is taken
    introspection_needed  refuses to serve an application without introspection
    discovery            the file that says where the running application answers
    start_mark           says that an application is starting, and is not announced yet
    client               requests of other commands to the running application
    relation_client      the client's end of the WebSocket
    metrics              the numbers of the relations in Prometheus' text format
    openapi              the description of the interface, made of the declared relations
"""
