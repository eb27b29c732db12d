"""`Stores`: where a process keeps what its runs read and write, handed around as one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from responses_app.stores.base import BaseResponseStore
from responses_app.stores.pictures import BasePictureStore
from responses_app.stores.stores import BaseChatStore

if TYPE_CHECKING:
    from responses_app.resources.conversations.store import Conversations
    from responses_app.resources.files.store import Files
    from responses_app.stores.database.approvals import DatabaseApprovalStore
    from responses_app.stores.database.rollouts.store import DatabaseRollouts


@dataclass(frozen=True, slots=True)
class Stores:
    """Where responses, what they are as chat completions, conversations, files, pictures and roll-outs are kept."""

    responses: BaseResponseStore
    chats: BaseChatStore
    conversations: "Conversations"
    files: "Files"
    approvals: "DatabaseApprovalStore"
    pictures: BasePictureStore
    rollouts: "DatabaseRollouts"
