"""What the application serves over HTTP: relations as JSON, metrics for Prometheus, SQL.

metrics    the numbers of the relations in Prometheus' text format
access     who may ask what: token, Host, Origin, sizes
openapi    the description of the interface, made of the declared relations
api        the routes
serving    a server in a thread
"""
