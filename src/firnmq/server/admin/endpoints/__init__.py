"""The endpoints of the HTTP listener, one module per area; `..routes` names the paths."""
