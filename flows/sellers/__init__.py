"""The payment providers that come declared; flows.gateways has those that needed code."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from flows.declared_seller import SellerDeclaration
from flows.sellers.adyen import adyen
from flows.sellers.coinbase import coinbase
from flows.sellers.lemon_squeezy import lemon_squeezy
from flows.sellers.paddle import paddle
from flows.sellers.polar import polar
from flows.sellers.square import square

SELLERS: Final[Mapping[str, SellerDeclaration]] = MappingProxyType(
    {one.name: one for one in (adyen, coinbase, lemon_squeezy, paddle, polar, square)}
)
