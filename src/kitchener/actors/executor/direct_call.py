"""Asks the gateway for a reply, once and without HO1, for a turn in which HO1 is broken.

Every entry of the call is marked as a governance violation. The call uses a contract of its own, so it does not depend on the
contract or the prompt pack that HO1 failed with. `chain.py` decides when to call it. Explained in `docs/turn.md`.
"""

from kitchener.actors.executor.answers import REPLY_KEY, UnreadableAnswer, read_answer, read_text
from kitchener.actors.executor.execution import Execution, ExecutionServices
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.toolsets import NO_TOOLS
from kitchener.clock import Clock
from kitchener.config import HO2Config, LimitsConfig
from kitchener.ledger import LedgerGroup
from kitchener.records.prompt import PromptGateway
from kitchener.records.work_order import DirectReply, WorkOrder


class GatewayDirectCall:
    """Makes direct calls; implements `DirectCall`.

    Args:
        ledgers: the call is recorded in HO1's ledger
        gateway: calls the models
        prompts: holds the contract
        clock: time of day, for `elapsed_ms`
        config: `turn_deadline_s` limits a call without `timeout_ms`
        limits: `abort_grace_s` limits how long a cut-off call may take to record its end; None: the defaults
        contract_id: the contract, which turns instructions and a message into a reply
    """

    def __init__(
        self,
        *,
        ledgers: LedgerGroup,
        gateway: PromptGateway,
        prompts: PromptLibrary,
        clock: Clock,
        config: HO2Config,
        limits: LimitsConfig | None = None,
        contract_id: str = "PRC-DIRECT-002",
    ) -> None:
        grace_s = (limits or LimitsConfig()).abort_grace_s
        self._services = ExecutionServices(ledgers, gateway, ToolRegistry(), clock, config.turn_deadline_s, grace_s)
        self._prompts, self._clock, self._contract_id = prompts, clock, contract_id

    async def __call__(self, work_order: WorkOrder, *, calls_before: int) -> DirectReply:
        """Returns the model's reply and its cost; see `DirectCall`.

        Raises:
            WorkOrderFailed: the provider failed, no tokens are left, or the answer cannot be stored
            PromptError: the contract is not known
        """
        contract = self._prompts.contract(self._contract_id)
        run = Execution(self._services, work_order, None, direct_after=calls_before)
        variables = work_order.input_context
        response = await run.call_model(contract, variables, contract.render(variables, work_order.turn_id), NO_TOOLS)
        output = read_text(response) if contract.output_schema is None else read_answer(response, plain_text=True)
        text = output.get(REPLY_KEY) if not isinstance(output, UnreadableAnswer) else None
        return DirectReply(text if isinstance(text, str) else "", run.tally.cost(self._clock.time_us()))
