"""Contacts that move from Google to Pipedrive: two accounts, asked for in one round.

elicit serve crm:mcp
"""

from functools import partial

import httpx
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

from flows import NotAccepted, elicit
from flows.providers import PersonProbe, Provider, ProviderKey, google

mcp = MCPServer("contacts")
GOOGLE = "https://people.googleapis.com/v1"
SCOPE = "https://www.googleapis.com/auth/contacts"
PIPEDRIVE = "https://api.pipedrive.com/v1"
pipedrive = Provider(  # people connect Pipedrive with their API token, without OAuth
    name="pipedrive_token",
    label="Pipedrive",
    api=PIPEDRIVE,
    key=ProviderKey(
        page="https://app.pipedrive.com/settings/api", label="API token", header="x-api-token"
    ),
    person=PersonProbe(url=f"{PIPEDRIVE}/users/me", id="data.id", label="data.email"),
)


class Contact(BaseModel):
    id: str
    name: str


async def list_contacts(api: httpx.AsyncClient) -> list[Contact]:
    found = await api.get(f"{GOOGLE}/people/me/connections", params={"personFields": "names"})
    people = found.raise_for_status().json().get("connections", [])
    return [
        Contact(id=one["resourceName"], name=one["names"][0]["displayName"])
        for one in people
        if one.get("names")
    ]


async def move(source: httpx.AsyncClient, target: httpx.AsyncClient, contact: Contact) -> str:
    """Create the contact in Pipedrive, then delete it at Google."""
    (await target.post("/persons", json={"name": contact.name})).raise_for_status()
    (await source.delete(f"{GOOGLE}/{contact.id}:deleteContact")).raise_for_status()
    return contact.name


@mcp.tool()
async def move_contacts() -> str:
    """Move the person's contacts from Google to Pipedrive."""
    try:
        from_google, to_pipedrive = await elicit.together(
            elicit.oauth(google, scopes=[SCOPE], reason="To read and delete your contacts."),
            elicit.api_key(pipedrive, reason="To create your contacts."),
        )
    except NotAccepted as refused:
        return f"Nothing was moved. {refused}"
    async with from_google.client() as source, to_pipedrive.client() as target:
        contacts = await elicit.once("list", partial(list_contacts, source))
        if not await elicit.confirm(f"Move {len(contacts)} contacts to Pipedrive?"):
            return "Nothing was moved."
        for contact in contacts:
            # If the process dies, the same call goes on with the contacts that are left.
            await elicit.once("move", partial(move, source, target, contact), key=contact.id)
    return f"{len(contacts)} contacts have moved to {to_pipedrive.label}."
