"""`shoal nodes`: the devices of the cluster."""

from __future__ import annotations

from shoal.cli.options import DEFAULT_HOME, Home, Json


def nodes(home: Home = DEFAULT_HOME, json: Json = False) -> None:
    """List the devices of the cluster: which are alive, what they work on, what they are.

    Example:  `shoal nodes`
    """
    from shoal.cli import console
    from shoal.cli.plain_json import to_plain
    from shoal.cli.reach import with_operator
    from shoal.cli.tables import nodes_table

    told = with_operator(home, lambda operator: operator.status())
    if json:
        console.print_json(to_plain(told.nodes))
    elif told.nodes:
        console.out().print(nodes_table(told.nodes))
    else:
        console.say("No device has joined yet: run the line that `shoal up` printed on each one.")
