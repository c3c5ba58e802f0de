"""Settings of where replicas run, beside this machine, and of how many there are."""

from typing import Annotated

from pydantic import AfterValidator, Field

from tidegate.config.section import Section


def _ray_address(value: str) -> str:
    host, colon, port = value.removeprefix("ray://").rpartition(":")
    if value != "auto" and not (host and colon and port.isdigit() and 0 < int(port) <= 65_535):
        raise ValueError(f'{value!r} is not the address of a Ray cluster, as in 10.0.0.5:6379 or "auto"')
    return value


def _name(value: str) -> str:
    if value:
        host, _, port = value.rpartition(":")
        if not host or not (port.isdigit() and 0 < int(port) <= 65_535) or "/" in value:
            raise ValueError(f"{value!r} is not a name and a port, as in vllm.default.svc.cluster.local:8000")
    return value


class RaySettings(Section):
    """The Ray cluster of pools with fleet = "ray"; needs the package ray (pip install 'tidegate[ray]')."""

    address: Annotated[str, AfterValidator(_ray_address)] = "auto"
    """Where its head is, such as "10.0.0.5:6379" (this machine must have joined it: `ray start --address`), or "auto"
    for the cluster that this machine is a part of."""
    connect_timeout_s: float = Field(15.0, gt=0)
    """Longest wait for the cluster to answer at the start."""
    lost_after_s: float = Field(5.0, ge=1)
    """How long a replica's node may be silent until another one is placed for it."""
    orphan_after_s: float = Field(86_400.0, ge=0)
    """How long replicas live on without a control that looks after them; 0 for ever."""


class RayNeeds(Section):
    """What one replica takes of a Ray cluster (fleet = "ray")."""

    cpus: float = Field(1.0, ge=0)
    """Cores."""
    gpus: float = Field(0.0, ge=0)
    """GPUs, or a share of one."""
    memory_mib: int = Field(0, ge=0)
    """Memory; 0 is not counted."""
    resources: dict[str, float] = Field({})
    """Ray's own further resources, such as { "accelerator_type:H100" = 0.01 }."""


class DnsSettings(Section):
    """The name whose addresses are external engines (fleet = "dns"), such as a headless service of Kubernetes."""

    name: Annotated[str, AfterValidator(_name)] = Field("", examples=["vllm.default.svc.cluster.local:8000"])
    """Name and port; every address of the name, IPv4 or IPv6, is an engine."""
    interval_s: float = Field(5.0, ge=0.1)
    """How often it is looked up. A lookup that fails changes nothing."""
    forget_after: int = Field(2, ge=1)
    """After how many lookups without it an address is given up."""


class ScalingSettings(Section):
    """How the number of engines follows the waiting, between replicas_min and replicas_max."""

    wait_s: float = Field(2.0, gt=0)
    """A longer wait for a free engine, or a request refused for it, asks for one engine more."""
    grow_after_s: float = Field(10.0, ge=0)
    """How long that must last."""
    shrink_below: float = Field(0.5, gt=0, lt=1)
    """An engine is taken away if the rest would then be used less than this."""
    shrink_after_s: float = Field(300.0, ge=0)
    """How long that must last."""
