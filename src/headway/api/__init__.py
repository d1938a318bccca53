"""The REST interface under /v1: routes and schemas over the use cases."""
