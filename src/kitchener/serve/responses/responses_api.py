"""Lists the operations of the Responses API."""

from typing import Final

from kitchener.serve.answer_models.response_answers import ItemListAnswer, ResponseAnswer
from kitchener.serve.native.event_feed import LAST_NUMBER
from kitchener.serve.operations_table import Parameter, Served
from kitchener.serve.responses.input_items import MAX_LISTED, InputItems
from kitchener.serve.responses.responses_endpoints import ResponseEndpoints
from kitchener.serve.responses.responses_request import ResponsesBody

_PATH: Final = "/v1/responses"
_RESPONSE: Final = Parameter("response_id", "path", "a response of the subject")
_STREAM: Final = Parameter("stream", "query", "`true`: as a stream of events", {"type": "string", "enum": ["true", "false"]})
_AFTER: Final = Parameter(
    "starting_after",
    "query",
    "number of the last event that the client has",
    {"type": "integer", "minimum": 0, "maximum": LAST_NUMBER},
)
_LIMIT: Final = Parameter("limit", "query", "most of them", {"type": "integer", "minimum": 1, "maximum": MAX_LISTED})
_ORDER: Final = Parameter("order", "query", "`desc`: the newest first", {"type": "string", "enum": ["asc", "desc"]})
_ITEM: Final = Parameter("after", "query", "the item after which the page begins")


def response_operations(endpoints: ResponseEndpoints, items: InputItems) -> list[Served]:
    """All operations about responses."""
    one, of_one, of_items = f"{_PATH}/{{response_id}}", (_RESPONSE, _STREAM, _AFTER), (_RESPONSE, _LIMIT, _ORDER, _ITEM)
    return [
        Served(
            "POST",
            _PATH,
            "Respond",
            endpoints.create,
            "chat",
            ResponsesBody,
            errors=(409, 410, 502, 504),
            streams=True,
            gives=ResponseAnswer,
        ),
        Served(
            "GET",
            one,
            "Retrieve a response",
            endpoints.retrieve,
            "read",
            None,
            of_one,
            errors=(410,),
            streams=True,
            gives=ResponseAnswer,
        ),
        Served(
            "DELETE",
            one,
            "Is refused: recorded turns are kept",
            endpoints.delete,
            "chat",
            None,
            (_RESPONSE,),
            status=405,
            errors=(405, 410),
        ),
        Served(
            "GET",
            f"{one}/input_items",
            "List what it was made from",
            items.list_all,
            "read",
            None,
            of_items,
            errors=(410,),
            gives=ItemListAnswer,
        ),
        Served(
            "POST",
            f"{one}/cancel",
            "Abort its turn",
            endpoints.cancel,
            "chat",
            None,
            (_RESPONSE,),
            errors=(409, 410),
            gives=ResponseAnswer,
        ),
    ]
