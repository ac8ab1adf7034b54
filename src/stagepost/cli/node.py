"""`stagepost node`: run one node."""

from __future__ import annotations

from typing import Any

import click

from stagepost import __version__
from stagepost.cli.node_flags import request_from, with_node_flags


@click.group()
def node() -> None:
    """Run one node.

    \b
    Example:
      stagepost node dmq --host-addr 127.0.0.1 --pools pools.json
    """


@node.command()
@with_node_flags()
@click.version_option(__version__, "-v", "--version", prog_name="stagepost node dmq")
@click.pass_context
def dmq(context: click.Context, /, **given: Any) -> None:
    """Run a DMQ node (CIP-0137) until SIGTERM or Ctrl-C.

    Takes dmq-node's flags, its JSON configuration and its topology file as they are. Flags win over
    stagepost.toml, that over dmq-node's JSON file. Where the node is to be reached stands in node.json in
    the data folder.

    \b
    Example:
      stagepost node dmq --host-addr 0.0.0.0 -t dmq.topology.json --pools pools.json
    """
    from stagepost.node.config_loading import load_node_config

    config = load_node_config(request_from(given))

    from stagepost.node.dmq_main import run_process

    context.exit(run_process(config))
