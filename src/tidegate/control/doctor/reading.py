"""`tidegate doctor --read FILE`: what is obsolete, harmful or missing in the ways in which a file starts vLLM. Pure."""

from collections.abc import Iterator
from typing import Final

from tidegate.control.doctor.deployment import Word, find
from tidegate.control.doctor.faults_logs import engine_of
from tidegate.control.doctor.findings import Finding, note, ok, problem
from tidegate.control.doctor.start_rules import RULES, VARIABLES, Started
from tidegate.engines import old_flags
from tidegate.engines.known_faults import diagnose
from tidegate.engines.model_facts import FIRST_VERSION
from tidegate.engines.old_flags import Remark, Verdict
from tidegate.engines.vllm_flags import PINNED, release

EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - looked for, not listened on
DOCKER_GRACE_S: Final = 10


def check(text: str, name: str) -> Iterator[Finding]:
    """Findings by line. A file that starts no vLLM, or cannot be read, is one too."""
    try:
        starts = find(text, name=name)
    except ValueError as error:
        yield problem(name, f"it cannot be read: {error}", "mend it first")
        return
    if not starts:
        diagnosis = diagnose(text, engine_of(text))
        if diagnosis is not None:
            line = text[: text.find(diagnosis.evidence)].count("\n") + 1
            yield problem(
                f"line {line}", f"{diagnosis.cause} ({diagnosis.name}: {diagnosis.evidence!r})", diagnosis.advice
            )
            return
        yield problem(
            name,
            "it starts no vLLM",
            "give a `vllm serve …` line, a shell script, a Dockerfile, a unit or a compose file",
        )
        return
    told: set[Finding] = set()
    for found in starts:
        started = Started.of(found)
        findings = [*_obsolete(started), *(() if started.elsewhere else (*_harmful(started), *_missing(started)))]
        new = [finding for finding in findings if finding not in told]
        told.update(new)
        yield from new or [ok(f"line {found.line}", "nothing to be said about it")]


def _obsolete(started: Started) -> Iterator[Finding]:
    found = started.found
    for word in found.command[:1]:
        if (remark := old_flags.check_command([word.text])) is not None and not (
            started.on_cpu and remark.verdict is Verdict.DEPRECATED
        ):
            yield _finding(remark, word.line)
    if found.image is not None and (remark := old_flags.check_image(found.image.text)) is not None:
        yield _finding(remark, found.image.line)
    for word in found.variables:
        if (remark := old_flags.check_variable(word.text.partition("=")[0])) is not None:
            yield note(f"line {word.line}", remark.text, remark.advice)
    for remark in old_flags.check([word.text for word in found.arguments], started.version):
        yield _finding(remark, found.arguments[remark.position].line)


def _finding(remark: Remark, line: int) -> Finding:
    make = note if remark.verdict is Verdict.DEPRECATED else problem
    return make(f"line {line}", remark.text, remark.advice)


def _harmful(started: Started) -> Iterator[Finding]:
    for rule in RULES:
        if rule.harms(started):
            make = problem if rule.grave else note
            line = started.line(rule.flag if rule.flag in started.flags else f"--no-{rule.flag.removeprefix('--')}")
            yield make(f"line {line}", rule.text, rule.advice)
    for name, why in VARIABLES.items():
        word = started.variable(name)
        if word is not None and word.text.partition("=")[2] not in {"", "0"}:
            yield note(f"line {word.line}", f"{name}: {why}", "leave it out")
    open_to_all = started.value("--host") in EVERYWHERE and "--uds" not in started.flags
    if open_to_all and "--api-key" not in started.flags and started.variable("VLLM_API_KEY") is None:
        yield note(
            f"line {started.line('--host')}",
            "it listens on every address without a key: whoever reaches the port can use the model",
            "set VLLM_API_KEY, or --host 127.0.0.1 behind the gateway",
        )
    yield from _image(started)


def _image(started: Started) -> Iterator[Finding]:
    image = started.found.image
    if image is None or old_flags.check_image(image.text) is not None:
        return
    tag = image.text.rpartition("/")[2].partition(":")[2]
    first = FIRST_VERSION["Ernie4_5ForCausalLM"]
    if "@" not in image.text and tag in {"", "latest", "nightly"}:
        yield note(f"line {image.line}", f"{image.text} is another vLLM after every pull", f"pin it, as in :v{PINNED}")
    elif started.ernie and release(started.version) < first:
        yield problem(
            f"line {image.line}",
            f"vLLM {started.version} does not know ERNIE 4.5 (0.10 and newer do)",
            f"use :v{PINNED}",
        )


def _missing(started: Started) -> Iterator[Finding]:
    flags, line = started.flags, f"line {started.found.line}"
    if "--max-num-queued-reqs" not in flags:
        yield note(
            line, "--max-num-queued-reqs is missing: the engine's queue has no end", "set four times --max-num-seqs"
        )
    if started.value("--scheduling-policy") != "priority":
        yield note(
            line,
            "--scheduling-policy priority is missing: a gateway cannot tell what is urgent",
            "add it; without priorities the order is the same as before",
        )
    if "--shutdown-timeout" not in flags:
        yield note(line, "--shutdown-timeout is missing: a stop breaks off every answer at once", "set 60, for one")
    if started.variable("VLLM_HTTP_TIMEOUT_KEEP_ALIVE") is None:
        yield note(
            line,
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE is missing: idle connections are closed after 5 s, and proxies meet resets",
            "set it to more than your proxy keeps them, such as 75",
        )
    if "--max-model-len" not in flags:
        of_ernie = " (ERNIE-4.5-0.3B: 131,072 tokens, 2.25 GiB of cache)" if started.ernie else ""
        yield note(
            line,
            f"--max-model-len is missing: one request may be as long as the model was trained on{of_ernie}",
            "set what your users need, such as 8192",
        )
    if started.model.startswith("/") and "--served-model-name" not in flags:
        yield note(line, "--served-model-name is missing: clients have to ask for the folder's path", "give it a name")
    if started.found.in_container:
        yield from _container(started)


def _container(started: Started) -> Iterator[Finding]:
    told, line = started.found.container, f"line {started.found.line}"
    if told.get("ipc", Word("", 0)).text != "host" and "shm_size" not in told:
        yield note(
            line,
            "shared memory is 64 MiB in a container: an engine on several GPUs ends with a bus error",
            "set ipc: host, or shm_size: 8gb",
        )
    if not started.on_cpu and not {"gpus", "deploy", "runtime", "device_requests", "resources"} & set(told):
        yield note(line, "no GPU is handed to the container", "--gpus all, or deploy.resources.reservations.devices")
    if not {"volumes", "volume", "v", "mount"} & set(told):
        yield note(
            line, "the model is downloaded anew for each container", "mount a volume at /root/.cache/huggingface"
        )
    if not {"restart", "deploy", "resources", "rm"} & set(told):
        yield note(line, "it is not started again when it ends", "restart: unless-stopped")
    timeout = started.number("--shutdown-timeout") or 0
    if timeout >= DOCKER_GRACE_S and not {"stop_grace_period", "stop_timeout", "resources"} & set(told):
        yield note(
            line,
            f"Docker kills after {DOCKER_GRACE_S} s, before --shutdown-timeout {timeout:g} is over",
            f"stop_grace_period: {timeout + 10:g}s",
        )
