"""The demo's main tools: connect an account, pay, type a secret; at the sandbox by default."""

from mcp.server.mcpserver import MCPServer

from flows import Money, elicit
from flows.providers import github


def add_tools(server: MCPServer) -> None:
    @server.tool()
    async def list_my_repositories() -> str:
        """List the person's repositories on GitHub, by the account that they connect."""
        account = await elicit.oauth(github, scopes=["repo"])
        async with account.client() as api:
            repositories = (await api.get("/user/repos")).raise_for_status().json()
        names = ", ".join(each["full_name"] for each in repositories)
        return f"{account.label} has {len(repositories)} repositories: {names}."

    @server.tool()
    async def buy_report() -> str:
        """Sell the person a report, and write it once it is paid."""
        # `again`: people try the demo twice and expect to be asked twice. A shop leaves it out.
        receipt = await elicit.payment(Money("9.00", "EUR"), "Premium report", again=True)
        return f"The {receipt.what.lower()} is yours; {receipt.price} was paid."

    @server.tool()
    async def use_key() -> str:
        """Let the person type a key that the client and the model never see, and use it once."""
        key = await elicit.secret("The key of your weather station, please.")
        return f"The station answers to a key of {len(key)} letters."
