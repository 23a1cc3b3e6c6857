"""What ownloop costs, beside raw aiohttp and beside other agent runtimes; never run in CI. See docs/bench.md."""
