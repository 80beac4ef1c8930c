"""Uses the client that openapi-python-client makes from the API's description.

Called with the gateway's address, the admin token and a receiver's URL, and with
the folder of the generated package `generated` on its path.
"""

import sys

from generated import AuthenticatedClient
from generated.api.endpoints import create_endpoint, get_endpoint, list_endpoints, update_endpoint
from generated.api.events import accept_event, accept_event_batch
from generated.models import (
    BreakerSettings,
    Endpoint,
    EndpointPage,
    EndpointPatch,
    NewEndpoint,
    NewEvent,
    Problem,
    ProblemCode,
    Receipt,
)

address, token, url = sys.argv[1:]
client = AuthenticatedClient(base_url=address, token=token, raise_on_unexpected_status=True)

new = NewEndpoint(url=url, breaker=BreakerSettings(consecutive_failures=7))
endpoint = create_endpoint.sync("default", client=client, body=new)
assert isinstance(endpoint, Endpoint) and endpoint.url == url, endpoint
assert endpoint.breaker.consecutive_failures == 7, endpoint

event = NewEvent(type_="order.shipped", data={"order": 7}, id="order-7-shipped")
receipt = accept_event.sync("default", client=client, body=event)
assert isinstance(receipt, Receipt) and receipt.deliveries == 1, receipt
batch = accept_event_batch.sync("default", client=client, body=[event])
assert batch.data[0].duplicate is True, batch

page = list_endpoints.sync("default", client=client)
assert isinstance(page, EndpointPage) and page.data[0].id == endpoint.id, page

# A patch holds what it names, and nothing that a client took for a default.
patch = EndpointPatch(breaker=BreakerSettings(enabled=False))
changed = update_endpoint.sync("default", endpoint.id, client=client, body=patch)
assert isinstance(changed, Endpoint) and changed.url == url, changed
assert changed.breaker.enabled is False and changed.breaker.consecutive_failures == 7, changed

missing = get_endpoint.sync("default", "ep_00000000000000000000000000", client=client)
assert isinstance(missing, Problem) and missing.code == ProblemCode.NOT_FOUND, missing
refused = create_endpoint.sync("default", client=client, body=NewEndpoint(url="ftp://example.com/"))
assert isinstance(refused, Problem) and refused.errors[0].pointer == "/url", refused
