"""The options that the commands of `tidegate bench` share."""

from pathlib import Path
from typing import Annotated

import typer

from tidegate.bench import lengths

Rate = Annotated[float | None, typer.Option(min=0.001, help="Requests a second, whatever the answers do.")]
How = Annotated[str, typer.Option("--arrivals", help="poisson, steady or bursts:SIZE.")]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", help="Recorded arrivals: JSON lines, a folder of a gateway's traces, or an access log."),
]
Speed = Annotated[float, typer.Option(min=0.001, help="With --trace: how much faster than recorded.")]
Concurrency = Annotated[
    int | None, typer.Option(min=1, max=60_000, help="So many requests at once, the next when one ends.")
]
Seconds = Annotated[float | None, typer.Option(min=0.1, help="How long to send; 30 if nothing else ends it.")]
Requests = Annotated[int | None, typer.Option(min=1, help="How many to send.")]
Warmup = Annotated[float, typer.Option(min=0, help="Seconds at the start that are not counted.")]
WorkloadName = Annotated[
    str, typer.Option("--workload", help="reference (512 in, 256 out), service (Chinese, short) or short.")
]
Input = Annotated[str, typer.Option("--input", help=f"Tokens of a prompt: {lengths.FORMS}.")]
Output = Annotated[str, typer.Option(help="Most tokens of an answer, in the same forms.")]
SharedPrefix = Annotated[str, typer.Option(help="SHARE:TOKENS[xCOUNT]: so many prompts begin with one of COUNT texts.")]
Classes = Annotated[
    list[str] | None, typer.Option("--class", help="NAME=SHARE of requests, sent as X-Request-Type; often.")
]
Completions = Annotated[bool, typer.Option("--completions", help="Text completions instead of chats.")]
Stream = Annotated[bool, typer.Option(help="Stream answers.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Answers as long as asked (vLLM, llama.cpp).")]
Extra = Annotated[str, typer.Option(help="More fields of each request, as a JSON object.")]
Key = Annotated[Path | None, typer.Option(help="File that holds the key.")]
Authorities = Annotated[
    Path | None, typer.Option("--ca-file", help="Who signs the certificates of https (PEM); else the system's.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Believe any certificate.")]
Bounds = Annotated[str, typer.Option(help="Bounds of a good answer: ttft=500ms,tpot=50ms,latency=3s.")]
Over = Annotated[float, typer.Option(min=0.001, help="Tell the share of answers over so many seconds.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds after which an answer is given up.")]
MostInFlight = Annotated[int, typer.Option(min=1, max=60_000, help="More at once are not sent, and fail.")]
CountEvents = Annotated[
    bool, typer.Option("--count-events", help="Take events for tokens where the server does not count.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write everything there.")]
Markdown = Annotated[Path | None, typer.Option(help="Write the table there.")]
Html = Annotated[Path | None, typer.Option(help="Write a page with plots there.")]
