"""The environment variables that commands read beside the settings of a node."""

COMMAND_VARIABLES = frozenset(
    {"FIRN_BOOTSTRAP", "FIRN_CONFIG", "FIRN_DATA", "FIRN_NODE", "FIRN_OPTION_FILE"}
)
