"""The settings: frozen, checked at the start, and the only reader of the environment.

A setting comes, in this order of precedence, from a command-line flag, an environment variable
(`TIDEGATE_GATEWAY__LISTEN` is `gateway.listen`), the settings file, its default. Lists (`[[model]]`, `[[class]]` …) come
from the file or, as JSON, from one variable (`TIDEGATE_MODEL`). Secrets are never settings: only `*_file` is.

`tidegate.example.toml` shows every key; it is made from `sections` by `example`, and a test holds it to them.
"""

from tidegate.config.addresses import Address, is_loopback, split_address
from tidegate.config.classes import ClassSettings, LimitsSettings, Policy, RuleSettings, TenantSettings
from tidegate.config.environment import HubEnvironment, hub_environment, terminal_language
from tidegate.config.fleets import DnsSettings, RayNeeds, RaySettings, ScalingSettings
from tidegate.config.loading import FILE_NAME, Explained, explain, find_file, load
from tidegate.config.reports import ReportSettings
from tidegate.config.section import Section
from tidegate.config.sections import (
    AdminSettings,
    ChatSettings,
    EnginesSettings,
    ExternalOptions,
    FakeOptions,
    GatewaySettings,
    LlamaCppOptions,
    LogSettings,
    ModelSettings,
    PoolSettings,
    SamplingSettings,
    Settings,
    StoreSettings,
    VllmOptions,
)

__all__ = [
    "FILE_NAME",
    "Address",
    "AdminSettings",
    "ChatSettings",
    "ClassSettings",
    "DnsSettings",
    "EnginesSettings",
    "Explained",
    "ExternalOptions",
    "FakeOptions",
    "GatewaySettings",
    "HubEnvironment",
    "LimitsSettings",
    "LlamaCppOptions",
    "LogSettings",
    "ModelSettings",
    "Policy",
    "PoolSettings",
    "RayNeeds",
    "RaySettings",
    "ReportSettings",
    "RuleSettings",
    "SamplingSettings",
    "ScalingSettings",
    "Section",
    "Settings",
    "StoreSettings",
    "TenantSettings",
    "VllmOptions",
    "explain",
    "find_file",
    "hub_environment",
    "is_loopback",
    "load",
    "split_address",
    "terminal_language",
]
