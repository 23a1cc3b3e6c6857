"""`make bench` and `python -m bench`: see `python -m bench --help` and docs/bench.md."""

import argparse
from pathlib import Path

from bench.drivers import ALL, STANDARD, load
from bench.environments import InstallError, environment, folder
from bench.report import table
from bench.rounds import Measured, mock_provider, run_rounds
from bench.worker import Job

ROUNDS = {"burst": 3, "paced": 2, "turns": 1, "cold": 2, "size": 1}
"""Of the standard set. Two hundred turns take a peer half a minute of CPU, so they are run once: no ± there."""
SHORT = (
    "burst µs/delta",
    "paced µs/delta",
    "a run ms",
    "20 turns ms/turn",
    "200 turns ms/turn",
    "200:20 ×",
    "import ms",
    "answered ms",
    "packages n",
    "installed MB",
)
"""The figures of the standard set; the single cases show all they have."""

HELP = f"""\
Compare what ownloop costs with raw aiohttp and with other agent runtimes. All costs are CPU time of the runtime's
process; only ratios mean something, and only those within a round.

what to measure:
  standard  all of the following, short: some minutes, one table (default)
  burst     a text delta of an answer that arrives at once: parsing and layers; and a run of one delta
  paced     a text delta that comes alone, in one of many streams at once: with event loop and system calls
  turns     a turn of a loop that calls a tool on each, at several lengths: is it linear?
  cold      import and first answer in a new process
  size      what is installed
  parts     pieces of ownloop without a network: bytes to events, and events to readers

examples:
  python -m bench burst --only raw_aiohttp,ownloop --rounds 6 --deltas 5000
  python -m bench paced --streams 200 --rate 50 --seconds 10
  python -m bench turns --turns 20,100,200,500 --only raw_aiohttp,ownloop,ownloop_sqlite
  python -m bench turns --turns 200 --only ownloop --profile     # where does the time go?
  python -m bench.soak 60                                        # sessions under load for an hour

Each driver has an environment of its own in {folder()}, made when it is first needed.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", default="standard", choices=["standard", *ROUNDS, "parts"])
    parser.add_argument("--only", metavar="A,B", default=",".join(STANDARD), help=f"drivers: {', '.join(ALL)}")
    parser.add_argument("--rounds", type=int, metavar="N", help="default: 1 to 3, by case")
    parser.add_argument("--deltas", type=int, default=1000, metavar="N", help="burst: of the long answer")
    parser.add_argument("--reps", type=int, default=3, metavar="N", help="runs of which the best counts, in a round")
    parser.add_argument("--turns", default="20,200", metavar="N,M", help="turns: lengths of the loop")
    parser.add_argument("--streams", type=int, default=25, metavar="N", help="paced: streams at once")
    parser.add_argument("--rate", type=int, default=20, metavar="N", help="paced: deltas a second, of each stream")
    parser.add_argument("--seconds", type=int, default=5, metavar="N", help="paced: length of each stream, at least 2")
    parser.add_argument("--profile", action="store_true", help="show where the CPU time goes (one round)")
    args = parser.parse_args()
    if args.what == "parts":
        from bench import parts  # needs ownloop

        parts.main()
        return
    names = args.only.split(",")
    if unknown := [name for name in names if name not in ALL]:
        parser.error(f"no driver {', '.join(unknown)}; there are: {', '.join(ALL)}")
    if args.seconds < 2:
        parser.error("--seconds is at least 2: a stream is measured from when all are open")
    cases = list(ROUNDS) if args.what == "standard" else [args.what]
    environments = available(names)
    if not environments:
        raise SystemExit("there is nothing to measure")
    results: list[Measured] = []
    with mock_provider() as base_url:
        for case in cases:
            job = Job(
                case,
                driver="",
                base_url=base_url,
                deltas=args.deltas,
                reps=args.reps,
                turns=[int(count) for count in args.turns.split(",")],
                streams=args.streams,
                rate=args.rate,
                seconds=args.seconds,
                profile=args.profile,
            )
            rounds = 1 if args.profile else args.rounds or ROUNDS[case]
            results += run_rounds(job, rounds, environments)
    if args.profile:
        return  # while samples are taken, the kernel counts CPU time in another way
    figures = [figure for result in results for figure in result.figures]
    shown = [figure for figure in dict.fromkeys(figures) if args.what != "standard" or figure in SHORT]
    print(f"\n{table(results, shown)}\n")


def available(names: list[str]) -> dict[str, Path]:
    """Return driver → environment, without those that cannot be installed."""
    found: dict[str, Path] = {}
    for name in names:
        try:
            found[name] = environment(load(name))
        except InstallError as error:
            print(f"{load(name).NAME} is left out: it cannot be installed. Is there a network?\n{error}", flush=True)
    return found


if __name__ == "__main__":
    main()
