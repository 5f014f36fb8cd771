"""The tools of the billing specialist, over invoices that stand in for a database."""

from typing import Annotated

from pydantic import Field

from kitchener import ToolContext, tool

Number = Annotated[str, Field(pattern=r"^\d{4}$", description="four digits, such as 4711")]

INVOICES = {
    "4711": {"customer": "ada", "amount": "120 EUR", "state": "paid twice"},
    "4712": {"customer": "bo", "amount": "80 EUR", "state": "open"},
}


def invoice_of(number: str, context: ToolContext) -> dict[str, str]:
    """The invoice of the person who is talking. A model cannot ask for somebody else's, whatever it is told."""
    found = INVOICES.get(number)
    if found is None or found["customer"] != context.subject_id:
        raise LookupError(f"this customer has no invoice {number}")
    return found


@tool(read_only=True)
def find_invoice(number: Number, context: ToolContext) -> dict[str, str]:
    """Find an invoice of the customer: amount and state."""
    for done, archive in enumerate(("this year", "last year"), 1):
        context.progress(done, 2, f"looking through {archive}")
    return invoice_of(number, context)


@tool(requires_approval=True)
def refund_invoice(number: Number, context: ToolContext) -> str:
    """Refund an invoice of the customer that was paid twice. A person of the company has to agree."""
    invoice = invoice_of(number, context)
    if invoice["state"] != "paid twice":  # also makes a second call harmless
        raise ValueError(f"invoice {number} is {invoice['state']}, so there is nothing to refund")
    invoice["state"] = "refunded"
    return f"invoice {number}: {invoice['amount']} refunded"
