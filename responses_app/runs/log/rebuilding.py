"""`Machines`: the machine of any response, of which its worker, its followers and a replay make the same events.

It knows the models and the keys of this server, and hands `machines.machine_of` those of one response.
"""

from dataclasses import dataclass

from responses_app.protocol.errors import ResponseError
from responses_app.protocol.items.client_tools import ClientTools
from responses_app.protocol.prompt.sealed_items import PURPOSE
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.sealing import Sealer
from responses_app.runs.log.machines import machine_of
from responses_app.runs.log.replay import Replay, as_begun, failed, replay
from responses_app.runs.plan.served import ServedModel, ServedModels
from responses_app.stores.base import AcceptedResponse, StoredLog


@dataclass(frozen=True, slots=True)
class Machines:
    """Makes machines, the same ones on every worker: `models` are those of this server.

    `id_key` makes the ids inside responses; all workers have the same, and the same secrets of the `sealer`.
    """

    models: ServedModels
    id_key: bytes
    sealer: Sealer

    def of(self, project: str, response: ResponseObject, tools: ClientTools | None = None) -> ResponseMachine:
        """Return the machine of a project's response, which is as it began; `tools`: see `machine_of`."""

        def seal(place: str, data: bytes) -> str:
            return self.sealer.seal_again(PURPOSE, project, data, place=f"{response['id']} {place}")

        model_format = self._model_of(response).format.at_effort(response["reasoning"].get("effort"))
        return machine_of(response, model_format, key=self.id_key, seal=seal, tools=tools)

    def replay(self, project: str, stored: StoredLog) -> Replay | None:
        """Make a finished response's stream again, as a run here would have made it; see `runs.log.replay`.

        None, too, where its model is served no more, and no served one reads its tokens as it did.
        """
        made = replay(stored, self.of(project, as_begun(stored.response)))
        is_served = self.models.named(stored.response["model"]) is not None
        return made if made is None or is_served or made.body["output"] == stored.response["output"] else None

    def failed(self, accepted: AcceptedResponse, error: ResponseError) -> StoredLog:
        """Return a response that was taken over, and its log, as they are once it has failed. Raises `BrokenLog`."""
        stored = StoredLog(accepted.response, accepted.log)
        return failed(stored, self.of(accepted.project, as_begun(accepted.response)), error)

    def _model_of(self, response: ResponseObject) -> ServedModel:
        return self.models.named(response["model"]) or self.models.first  # its own may be served no more
