"""`penstock pipeline replay|dead-letters|audit|compact`: the built-in pipelines that end by themselves with a result.

The result goes to standard output, how far they are to standard error.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import options
from penstock.cli.pipeline_options import (
    DEFAULT_MASTER,
    Catalog,
    Conf,
    Environment,
    Format,
    Master,
    Place,
    Quick,
    TableFormat,
    Verbose,
    perform,
    show,
)
from penstock.cli.positions import FORMS, Kind, position_of, resolve
from penstock.cli.terminal import CommandFailed, confirm, done, guarded, note, print_json, print_table

# -- replay -------------------------------------------------------------------------------------------------


@guarded
def replay(
    into: Annotated[str, typer.Option("--into", metavar="TOPIC", help="The topic that is written.")],
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="The topic that is read.")] = None,
    source_table: Annotated[str | None, typer.Option("--table", metavar="DIR", help="Or the table.")] = None,
    table_format: TableFormat = Format.parquet,
    catalog: Catalog = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="POSITION", help=f"Of a topic, where to begin: {FORMS}.", show_default="its start"
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--until", metavar="POSITION", help="And where to end, likewise.", show_default="its end"),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Of a topic: only this one.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only records of this key.")] = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Only records for which this holds.")
    ] = None,
    rows_per_s: Annotated[float | None, typer.Option("--rate", min=0.001, metavar="N", help="Rows a second.")] = None,
    run_name: Annotated[
        str | None,
        typer.Option(
            "--run", help="The same name again goes on where it ended, and repeats nothing.", show_default="new"
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count only.")] = False,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    environment: Environment = None,
    quick: Quick = False,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    verbose: Verbose = False,
) -> None:
    """Records of a topic's range or of a table back into a topic: keys, headers and times kept, once per run."""
    if (topic is None) == (source_table is None):
        raise typer.BadParameter("say what is read, with either --topic or --table")
    if topic is None and (start or end or partition is not None):
        raise typer.BadParameter("--from, --until and --partition are for a topic")
    bounds = _bounds(server, topic, start, end, partition) if topic is not None else {}
    place = Place(f"replay-{into}", server, master, conf, environment, quick, verbose, as_json, result_matters=True)

    def work(run: Any, spark: Any) -> Any:
        from penstock.pipeline.jobs import replay as job

        given = job.ReplayOptions(
            server=server,
            into=into,
            run=run_name or f"replay-{into}-{run.id}",
            topic=topic,
            table=str(Path(source_table).absolute()) if source_table is not None else None,
            format=table_format.value,
            catalog=catalog,
            key=key,
            where=where,
            rows_per_s=rows_per_s,
            dry_run=dry_run,
            **bounds,
        )
        return job.run(spark, given, on_progress=run.progressed)

    result = perform(place, work, about={"kind": "replay", "target": into, "source": topic or source_table})
    if result is None:
        return
    if as_json:
        print_json(asdict(result))
    elif result.skipped:
        done(f"run {result.run} was complete before; nothing was written")
    else:
        done(f"{'would write' if dry_run else 'wrote'} {result.rows:,} records to {into} (run {result.run})")


def _bounds(server: str, topic: str, start: str | None, end: str | None, partition: int | None) -> dict[str, Any]:
    """The range as offsets of each partition; of a partition that was not chosen it is empty."""
    positions = {
        side: position_of(text, option)
        for side, text, option in (("starting_offsets", start, "--from"), ("ending_offsets", end, "--until"))
        if text is not None
    }
    if partition is None and not positions:
        return {}
    with options.connect(server) as client:
        places = [(topic, index) for index in range(client.topic(topic).partitions)]
        if partition is not None and (topic, partition) not in places:
            raise CommandFailed(f"there is no partition {partition} in {topic}: it has {len(places)}")
        bounds: dict[str, Any] = {
            side: {index: offset for (_, index), offset in resolve(client, position, places).items()}
            for side, position in positions.items()
        }
        if partition is not None:
            limits = client.bounds(places)
            bounds.setdefault("starting_offsets", {index: one.start for (_, index), one in limits.items()})
            bounds.setdefault("ending_offsets", {index: one.end for (_, index), one in limits.items()})
            for _, index in places:
                if index != partition:
                    bounds["ending_offsets"][index] = bounds["starting_offsets"][index]
    return bounds


# -- dead-letters -------------------------------------------------------------------------------------------


@guarded
def dead_letters(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]", help="Dead-letter topics.", show_default="all that there are"),
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Only this reason; * and ? match.")] = None,
    origin: Annotated[str | None, typer.Option("--origin", help="Only from this topic; * and ? match.")] = None,
    view: Annotated[
        str | None, typer.Option("--queue", metavar="TOPIC/QUEUE", help="Only from this queue; * and ? match.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Died at or after: 2h, 2026-11-15.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Died before.")] = None,
    samples: Annotated[int, typer.Option("--samples", min=0, help="Letters shown of each reason and origin.")] = 5,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a page with plots.")] = None,
    redrive: Annotated[
        bool, typer.Option("--redrive", help="Send those that are chosen back to where they came from.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Redrive at most so many.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would be redriven.")] = False,
    yes: options.Yes = False,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    environment: Environment = None,
    quick: Quick = False,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    verbose: Verbose = False,
) -> None:
    """What died, why, where it came from and when; and back with what is chosen.

    Without --redrive nothing is changed.
    """
    if redrive and html:
        raise typer.BadParameter("a page is made of a report: leave out --redrive or --html")
    if (dry_run or limit) and not redrive:
        raise typer.BadParameter("--limit and --dry-run are for --redrive")
    since_ms, until_ms = _time_ms(since, "--since"), _time_ms(until, "--until")
    if redrive and not dry_run:
        confirm("Send what is chosen back to where it came from?", yes)
    place = Place("dead-letters", server, master, conf, environment, quick, verbose, as_json, result_matters=True)

    def work(run: Any, spark: Any) -> Any:
        from penstock.pipeline.jobs import dead_letters as job

        select = job.Selection(
            reason=reason, origin_topic=origin, origin_view=view, since_ms=since_ms, until_ms=until_ms
        )
        if redrive:
            asked = job.RedriveOptions(server=server, topics=topics or (), select=select, limit=limit, dry_run=dry_run)
            return job.redrive(spark, asked, on_progress=run.progressed)
        given = job.DeadLetterOptions(server=server, topics=topics or (), select=select, samples=samples)
        return job.run(spark, given, on_progress=run.progressed)

    result = perform(place, work, about={"kind": "dead-letters"})
    if result is None:
        return
    if not redrive:
        if html is not None:
            _write(html, result.html())
        show(result, as_json)
    elif as_json:
        print_json({**asdict(result), "count": result.count})
    else:
        if result.redriven:
            rows = [[one.letters, one.origin, one.count] for one in result.redriven]
            print_table(["From", "To", "#Messages"], rows)
        done(f"{'would redrive' if dry_run else 'redrove'} {result.count:,} messages")


def _write(file: str, text: str) -> None:
    try:
        Path(file).expanduser().write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"cannot write {file}: {error.strerror}") from None
    note(f"wrote {file}")


def _time_ms(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    position = position_of(text, option)
    if position.kind is not Kind.TIME:
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-11-15T09:00 or 2h", param_hint=option)
    return position.number


# -- audit --------------------------------------------------------------------------------------------------


@guarded
def audit(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that is right by definition.")],
    target_table: Annotated[str | None, typer.Option("--table", metavar="DIR", help="The table made of it.")] = None,
    table_format: TableFormat = Format.parquet,
    catalog: Catalog = None,
    mirror: Annotated[
        str | None, typer.Option("--mirror", metavar="TOPIC", help="Or the topic that mirrors it.")
    ] = None,
    mirror_server: Annotated[
        str | None, typer.Option("--mirror-server", metavar="HOST:PORT", help="Where that is.", show_default="the same")
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare", metavar="COLUMN", help="key, value, timestamp, headers.", show_default="all there are"
        ),
    ] = None,
    complete: Annotated[
        bool, typer.Option("--complete/--behind", help="What is newer than the target is lost, or not there yet.")
    ] = True,
    samples: Annotated[int, typer.Option("--samples", min=0, help="Differences shown of each kind.")] = 10,
    quarantine: Annotated[
        str | None,
        typer.Option(
            "--quarantine", metavar="TOPIC", help="What is there is not lost.", show_default="TOPIC.quarantine"
        ),
    ] = None,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    environment: Environment = None,
    quick: Quick = False,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    verbose: Verbose = False,
) -> None:
    """Prove that a topic's table or mirror has everything once and in order. Exit code 1 if it has not."""
    if (target_table is None) == (mirror is None):
        raise typer.BadParameter("say what is compared, with either --table or --mirror")
    place = Place(f"audit-{topic}", server, master, conf, environment, quick, verbose, as_json, result_matters=True)

    def work(run: Any, spark: Any) -> Any:
        from penstock.pipeline.jobs import audit as job

        given = job.AuditOptions(
            server=server,
            topic=topic,
            table=str(Path(target_table).absolute()) if target_table is not None else None,
            format=table_format.value,
            catalog=catalog,
            mirror=mirror,
            mirror_server=mirror_server,
            compare=compare or (),
            complete=complete,
            samples=samples,
            quarantine=quarantine,
        )
        return job.run(spark, given, on_progress=run.progressed)

    proof = perform(place, work, about={"kind": "audit", "topic": topic, "target": target_table or mirror})
    if proof is None:
        return
    show(proof, as_json)
    if not proof.holds:
        raise typer.Exit(1)


# -- compact ------------------------------------------------------------------------------------------------


@guarded
def compact(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that is compacted.")],
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="How many it has afterwards.", show_default="as many"),
    ] = None,
    newest_only: Annotated[
        bool, typer.Option("--newest-only/--all", help="The newest of each key, or all: then only re-partition.")
    ] = True,
    tombstone_retention_ms: Annotated[
        int | None,
        typer.Option(
            "--tombstone-retention-ms", min=0, help="How long deletions stay.", show_default="delete.retention.ms"
        ),
    ] = None,
    keep_as: Annotated[
        str | None, typer.Option("--keep-as", metavar="TOPIC", help="Keep the old topic under this name.")
    ] = None,
    tries: Annotated[int, typer.Option("--tries", min=1, help="How often to catch up with writers.")] = 10,
    yes: options.Yes = False,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    environment: Environment = None,
    quick: Quick = False,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    verbose: Verbose = False,
) -> None:
    """Compact and re-partition a large topic with Spark; the result takes its name in one moment."""
    confirm(f"Replace {topic} by what is left of it{'' if keep_as is None else f' (kept as {keep_as})'}?", yes)
    place = Place(f"compact-{topic}", server, master, conf, environment, quick, verbose, as_json, result_matters=True)

    def work(run: Any, spark: Any) -> Any:
        from penstock.pipeline.jobs import compact as job

        given = job.CompactOptions(
            server=server,
            topic=topic,
            partitions=partitions,
            newest_only=newest_only,
            tombstone_retention_ms=tombstone_retention_ms,
            keep_as=keep_as,
            tries=tries,
        )
        return job.run(spark, given, on_progress=run.progressed)

    result = perform(place, work, about={"kind": "compact", "topic": topic})
    if result is None:
        return
    if as_json:
        print_json(asdict(result))
        return
    rows = [
        ["Records", result.records_before, result.records_after],
        ["Bytes", result.bytes_before, result.bytes_after],
        ["Partitions", result.partitions_before, result.partitions_after],
    ]
    print_table(["", "#Before", "#After"], rows)
    if result.groups:
        print_table(["Group", "#Partition", "#Before", "#After"], [list(one) for one in result.groups])
    kept = f"; the old one is {result.kept_as}" if result.kept_as else ""
    done(f"compacted {topic} in {result.seconds:.1f} s{kept}")
