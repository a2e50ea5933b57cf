"""The declared payment providers; flows.payments.registry has the providers written in code."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from flows.payments.declared.catalog.adyen import adyen
from flows.payments.declared.catalog.coinbase import coinbase
from flows.payments.declared.catalog.lemon_squeezy import lemon_squeezy
from flows.payments.declared.catalog.paddle import paddle
from flows.payments.declared.catalog.polar import polar
from flows.payments.declared.catalog.square import square
from flows.payments.declared.declaration import ProviderDeclaration

SELLERS: Final[Mapping[str, ProviderDeclaration]] = MappingProxyType(
    {one.name: one for one in (adyen, coinbase, lemon_squeezy, paddle, polar, square)}
)
