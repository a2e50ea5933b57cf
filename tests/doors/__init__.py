"""Rules and doors: for each rule of this project, every door at which the rule has to hold.

A *rule* is one sentence of docs/reference/threat-table.md or of a promise of the design. A *door*
is a way in or out of the server: an MCP tool, an `asking` block, the HTTP API, a page, a store and
so on. Most defects that people found from outside were one rule that a newer door did not follow,
so every rule has a cell for every door, and one parametrised test (test_doors.py) walks all cells.
A cell is a probe, which tries to break the rule at that door, or one sentence that says why the
door cannot break it. A door without a cell fails the test.

To add a rule, add a `Rule` to the list `RULES` of a module in this folder, or add a new module with
such a list (modules are discovered automatically):

    async def _is_refused(world: World, door: Door) -> None:
        asked = await world.ask(door, {"kind": "confirm", "message": "Pay?"})
        assert ...

    RULES = [
        Rule(
            id="paid-once",
            says="A permanent purchase is paid only once",
            source="promise 8",
            cells={
                **every(ASKING, _is_refused),
                Door.COMMAND: "a command never asks for a payment",
                **every(ENTERING, "a sign-in never pays for anything"),
                ...
            },
        ),
    ]

`world.ask` asks the same question at any door of ASKING, so one probe usually covers all of these.
A probe that needs tools of its own registers them with `@world_tools`. To add a door, add it to
`Door` and to one of the groups. The test then names every rule without a cell for it. Afterwards,
`python -m tests.doors` updates docs/reference/threat-table.md.
"""
