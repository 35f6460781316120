"""What every HTTP request passes before an endpoint: socket, connection, limits, guard, token."""
